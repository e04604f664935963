"""A gRPC client: makes one kind of call and prints what came of it."""

import os
import sys
import threading

import grpc

address, what = sys.argv[1], sys.argv[2]
argument = sys.argv[3] if len(sys.argv) > 3 else ""
options = [("grpc.enable_retries", 0), ("grpc.ssl_target_name_override", "a.example")]
roots = os.environ.get("ROOTS")
if roots:
    trusted = grpc.ssl_channel_credentials(open(roots, "rb").read())
    channel = grpc.secure_channel(address, trusted, options=options)
else:
    channel = grpc.insecure_channel(address, options=options)


def method(name, kind="unary_unary"):
    return getattr(channel, kind)("/test.Test/" + name)


def unary(name, request, **options):
    response, call = method(name).with_call(request, **options)
    trailing = {key: value for key, value in call.trailing_metadata()}
    return response.decode(), trailing


def two_ways():
    """Sends each piece only after the one before has come back."""
    came = threading.Semaphore(1)
    pieces = ["one", "two", "three"]

    def requests():
        for piece in pieces:
            came.acquire(timeout=10)
            yield piece.encode()

    answers = []
    for answer in method("Upper", "stream_stream")(requests(), timeout=20):
        answers.append(answer.decode())
        came.release()
    return " ".join(answers)


try:
    if what == "echo":
        print("OK", *unary("Echo", argument.encode(), timeout=20))
    elif what == "trailers":
        print("OK", *unary("Echo", b"x", timeout=20, metadata=(("x-trailing", argument),)))
    elif what == "two_ways":
        print("OK", two_ways())
    elif what == "count":
        answers = method("Count", "unary_stream")(argument.encode(), timeout=20)
        print("OK", sum(1 for _ in answers))
    elif what == "total":
        pieces = (b"x" * 100_000 for _ in range(int(argument)))
        print("OK", method("Total", "stream_unary")(pieces, timeout=20).decode())
    elif what == "fail":
        unary("Fail", b"", timeout=20)
    elif what == "deadline":
        unary("Sleep", b"30", timeout=float(argument))
    elif what == "no_deadline":
        unary("Sleep", argument.encode())
    elif what == "unknown":
        unary("Unknown", b"", timeout=20)
    elif what == "drip":
        answers = method("Drip", "unary_stream")(b"0.05", timeout=float(argument))
        for count, _ in enumerate(answers):
            print("got", count)
    elif what == "break_off":
        for answer in method("BreakOff", "unary_stream")(b"", timeout=20):
            print("got", answer.decode())
    elif what == "cancel":
        call = method("Held", "unary_stream")(b"30", timeout=20)
        next(call)
        call.cancel()
        print("OK", *unary("WasCancelled", b"10", timeout=20))
    elif what == "many":
        calls = [method("Echo").future(str(number).encode(), timeout=20) for number in range(int(argument))]
        print("OK", sum(call.result() == str(number).encode() for number, call in enumerate(calls)))
    else:
        sys.exit("unknown: " + what)
except grpc.RpcError as error:
    print(error.code().name, "|", error.details(), "|", dict(error.initial_metadata() or ()), dict(error.trailing_metadata() or ()))
