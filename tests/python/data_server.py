"""An HTTP server on loopback that misbehaves as it is told, for data_get.py."""

import http.server
import re
import threading


class DataServer:
    """Serves `files`: path -> bytes, or what is called with the request's handler."""

    def __init__(self):
        self.files = {}
        self.requests = []
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests.append((self.path, self.headers.get("Range")))
                answer = outer.files.get(self.path)
                if answer is None:
                    self.send_error(404)
                elif callable(answer):
                    answer(self)
                else:
                    send(self, answer)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                """Clients that are killed close their connections."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    def cut_off(self, content, times):
        """The connection breaks in the middle, so many times; what is left can be asked for."""
        left = [times]

        def answer(handler):
            cut = left[0] > 0
            left[0] -= 1
            send(handler, content, share=0.5 if cut else 1)

        return answer

    def no_ranges(self, content):
        """The first connection breaks in the middle; ranges are not known."""
        first = [True]

        def answer(handler):
            send(handler, content, share=0.5 if first[0] else 1, ranges=False)
            first[0] = False

        return answer

    def wait_in_the_middle(self, content):
        def answer(handler):
            send(handler, content, share=0.5, close=False)
            self.half_sent.set()
            self.go_on.wait()
            handler.close_connection = True

        return answer

    def wait_for(self, clients, content):
        """Answers once so many have asked."""
        all_there = threading.Barrier(clients)

        def answer(handler):
            all_there.wait()
            send(handler, content)

        return answer

    def silent(self, handler):
        self.go_on.wait()
        handler.close_connection = True

    def busy_once(self, content):
        first = [True]

        def answer(handler):
            if first[0]:
                first[0] = False
                handler.send_error(503)
            else:
                send(handler, content)

        return answer


def send(handler, content, share=1.0, ranges=True, close=True):
    start = 0
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
    if asked and ranges:
        start = int(asked[1])
        handler.send_response(206)
        handler.send_header(
            "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
        )
    else:
        handler.send_response(200)
    body = content[start:]
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: int(len(body) * share)])
    handler.wfile.flush()
    if share < 1 and close:
        handler.close_connection = True
