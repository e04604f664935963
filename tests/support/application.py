"""A small web application, served by what people serve them with: it knows lengths only, as WSGI and CGI do.

    gunicorn application:app
    application.py wsgiref PORT
    application.py django runserver --noreload --nothreading PORT
    application.py http.server PORT        (as a CGI script in ./cgi-bin)
"""

import hashlib
import os
import sys
import time


def digest(data):
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode()


def read(environ):
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/bytes/"):
        length = int(path.rsplit("/", 1)[1])
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(length))])
        block = bytes(range(251)) * 251
        return (block[: length - at] for at in range(0, length, len(block)))
    if path == "/events":
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return events()
    body = digest(read(environ))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def events():
    """The next event is made when the file of its name is there."""
    for number in range(3):
        while number and not os.path.exists(f"event-{number}"):
            time.sleep(0.01)
        yield f"data: {number}\n\n".encode()


def serve_wsgiref(port):
    from wsgiref.simple_server import make_server

    make_server("127.0.0.1", int(port), app).serve_forever()


def serve_django(arguments):
    from django.conf import settings
    from django.core.management import execute_from_command_line
    from django.http import HttpResponse
    from django.urls import path

    settings.configure(
        DEBUG=True, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="test", MIDDLEWARE=[], DATABASES={}
    )
    globals()["urlpatterns"] = [path("upload", lambda request: HttpResponse(digest(request.body)))]
    execute_from_command_line(["manage.py", *arguments])


def serve_cgi(port):
    import http.server

    http.server.CGIHTTPRequestHandler.protocol_version = "HTTP/1.0"
    server = http.server.HTTPServer(("127.0.0.1", int(port)), http.server.CGIHTTPRequestHandler)
    server.serve_forever()


def answer_cgi():
    length = int(os.environ.get("CONTENT_LENGTH") or 0)
    sys.stdout.buffer.write(b"Content-Type: text/plain\r\n\r\n" + digest(sys.stdin.buffer.read(length)))


if __name__ == "__main__":
    if "GATEWAY_INTERFACE" in os.environ:
        answer_cgi()
    elif sys.argv[1] == "wsgiref":
        serve_wsgiref(sys.argv[2])
    elif sys.argv[1] == "django":
        serve_django(sys.argv[2:])
    else:
        serve_cgi(sys.argv[2])
