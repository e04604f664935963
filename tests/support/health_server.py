"""A gRPC server that answers health checks, without generated code: messages are bytes."""

import sys
from concurrent import futures

import grpc

NAMES = {b"", b"shop.Cart"}


def check(request, context):
    # HealthCheckRequest { string service = 1; }
    name = request[2:] if request else b""
    if name not in NAMES:
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
    with open(sys.argv[2], encoding="ascii") as file:
        # HealthCheckResponse { ServingStatus status = 1; }
        return bytes([0x08, int(file.read())])


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
handler = grpc.unary_unary_rpc_method_handler(check)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),))
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
