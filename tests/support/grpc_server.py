"""A gRPC backend without generated code: methods take and give bytes."""

import sys
import threading
import time
from concurrent import futures

import grpc

SEEN = {"cancelled": threading.Event()}


def echo(request, context):
    for key, value in context.invocation_metadata():
        if key == "x-trailing":
            context.set_trailing_metadata((("x-trailed", value),))
    return request


def upper(requests, context):
    for request in requests:
        yield request.upper()


def count(request, context):
    for number in range(int(request)):
        yield str(number).encode()


def total(requests, context):
    return str(sum(len(request) for request in requests)).encode()


def fail(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not like this: 100% \u00fc")


def held(request, context):
    """Says that it has begun, and goes on until the caller has enough."""
    context.add_callback(SEEN["cancelled"].set)
    yield b"begun"
    yield sleep(request, context)


def sleep(request, context):
    deadline = time.monotonic() + float(request)
    while context.is_active() and time.monotonic() < deadline:
        time.sleep(0.01)
    return b"slept"


def was_cancelled(request, context):
    return b"yes" if SEEN["cancelled"].wait(float(request)) else b"no"


def drip(request, context):
    for number in range(1000):
        yield str(number).encode()
        time.sleep(float(request))


def break_off(request, context):
    yield b"something"
    context.abort(grpc.StatusCode.UNAVAILABLE, "no more")


HANDLERS = {
    "BreakOff": grpc.unary_stream_rpc_method_handler(break_off),
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Upper": grpc.stream_stream_rpc_method_handler(upper),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Sleep": grpc.unary_unary_rpc_method_handler(sleep),
    "Held": grpc.unary_stream_rpc_method_handler(held),
    "WasCancelled": grpc.unary_unary_rpc_method_handler(was_cancelled),
    "Drip": grpc.unary_stream_rpc_method_handler(drip),
}

# HealthCheckResponse { ServingStatus status = 1; }, which is SERVING.
HEALTH = {"Check": grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x08\x01")}

server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
for service, handlers in (("test.Test", HANDLERS), ("grpc.health.v1.Health", HEALTH)):
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
if len(sys.argv) > 2:
    certificate, key = (open(name, "rb").read() for name in sys.argv[2:4])
    server.add_secure_port(sys.argv[1], grpc.ssl_server_credentials([(key, certificate)]))
else:
    server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
