# SPDX-License-Identifier: Apache-2.0
"""Servers of objects for tests, all on loopback: nginx (a fast range server, with TLS), SeaweedFS (a real S3 service, signed
requests), and a scripted server that answers wrong in every way a test asks for and counts what it was asked."""
import collections
import hashlib
import hmac
import http.client
import importlib.util
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

WEED = os.path.join(os.path.dirname(sys.executable), "weed")


def free_ports(count):
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


# ---- nginx ----

def make_certificates(folder):
    """An authority and a certificate of 127.0.0.1 that it signed; the authority's file."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj",
            "/CN=heft test authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout",
            "server.key", "-out", "server.csr")
    with open(os.path.join(folder, "san.cnf"), "w") as ext:
        ext.write("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile",
            "san.cnf", "-out", "server.pem")
    return os.path.join(folder, "ca.pem")


class Nginx:
    """A range server of one folder, plain and with TLS."""

    def __init__(self, fleet, root):
        self.dir = fleet.path("nginx")
        os.makedirs(self.dir)
        self.ca = make_certificates(self.dir)
        self.port, self.tls_port = free_ports(2)
        self.log = os.path.join(self.dir, "access.log")
        temps = " ".join(f"{kind}_temp_path {self.dir}/{kind};" for kind in
                         ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = os.path.join(self.dir, "nginx.conf")
        with open(config, "w") as out:
            out.write(f"""daemon off; master_process off; pid {self.dir}/pid; error_log {self.dir}/error.log;
{'user root;' if os.geteuid() == 0 else ''}
events {{ worker_connections 512; }}
http {{
  access_log {self.log}; {temps} sendfile on; root {root};
  server {{ listen 127.0.0.1:{self.port}; listen 127.0.0.1:{self.tls_port} ssl;
           ssl_certificate {self.dir}/server.pem; ssl_certificate_key {self.dir}/server.key; }}
}}
""")
        self.process = fleet.start("nginx", "nginx", "-e", os.path.join(self.dir, "error.log"), "-c", config)
        f.until(lambda: accepts(self.port) and accepts(self.tls_port), "nginx to listen")
        self.url, self.tls_url = f"http://127.0.0.1:{self.port}", f"https://127.0.0.1:{self.tls_port}"


def has_nginx():
    return shutil.which("nginx") is not None and shutil.which("openssl") is not None


# ---- S3 ----

def sign(method, host, path, query, keys, payload, region="us-east-1"):
    """Headers of a signed S3 request, by hashlib alone: another signer than heft's."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest = hashlib.sha256(payload).hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    request = f"{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{now}\n\n{names}\n{digest}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = ("AWS4" + keys[1]).encode()
    for word in (now[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return {"Authorization": f"AWS4-HMAC-SHA256 Credential={keys[0]}/{scope}, SignedHeaders={names}, Signature={signature}",
            "x-amz-date": now, "x-amz-content-sha256": digest}


class S3Service:
    """A service that speaks S3 on loopback and has a bucket named models."""

    def serve_at(self, port):
        self.port, self.host = port, f"127.0.0.1:{port}"
        self.env = {"AWS_ENDPOINT_URL": f"http://{self.host}", "AWS_ACCESS_KEY_ID": self.keys[0],
                    "AWS_SECRET_ACCESS_KEY": self.keys[1], "AWS_REGION": "us-east-1"}

    def put(self, path, data):
        """True when the service took it."""
        path = urllib.parse.quote(path)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", path, data, sign("PUT", self.host, path, "", self.keys, data))
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def upload(self, folder, prefix):
        for path, name in walk(folder):
            with open(path, "rb") as data:
                assert self.put(f"/models/{prefix}/{name}", data.read()), name


class Seaweed(S3Service):
    """A SeaweedFS with an S3 gateway that checks signatures."""
    keys = ("test-key", "test-secret/of+letters")

    def __init__(self, fleet):
        self.dir = fleet.path("weed")
        os.makedirs(os.path.join(self.dir, "data"))
        config = os.path.join(self.dir, "s3.json")
        with open(config, "w") as out:
            out.write('{"identities": [{"name": "t", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], '
                      '"actions": ["Admin", "Read", "List", "Write"]}]}' % self.keys)
        # the gRPC ports too: the defaults are the ports + 10000, which may be beyond the range or taken
        ports = free_ports(11)
        self.port = ports[3]
        names = ("master.port", "volume.port", "filer.port", "s3.port", "master.port.grpc", "volume.port.grpc", "filer.port.grpc",
                 "s3.port.grpc", "s3.port.https", "s3.port.iceberg", "s3.port.lance")
        self.process = fleet.start(
            "weed", WEED, "-logtostderr=true", "server", "-s3", f"-dir={self.dir}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-s3.config={config}", "-master.volumeSizeLimitMB=64", *[f"-{n}={p}" for n, p in zip(names, ports)])
        self.serve_at(self.port)

        def ready():
            if not self.process.running():
                raise AssertionError(f"weed ended:\n{self.process.text()[-2000:]}")
            return accepts(self.port) and self.put("/models", b"")
        f.until(ready, "SeaweedFS to make a bucket", pause=0.2)


def has_seaweed():
    return os.access(WEED, os.X_OK)


# One user with a key of its own, and one role (loader), who may do all of S3; from then on every request is checked by moto's own signer
# (botocore). As at Amazon, who asks STS for a role by a web identity's token signs nothing; moto would check even that.
MOTO = """
import json, os, time
from moto import settings
from moto.iam.models import iam_backends
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.sts.responses import TokenResponse
policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})
iam = iam_backends["123456789012"]["aws"]
iam.create_user("us-east-1", "tester")
iam.put_user_policy("tester", "all", policy)
for role in ("loader", "idler"):
    iam.create_role(role, "{}", "/", None, "", {}, 3600)
iam.put_role_policy("loader", "all", policy)
TokenResponse._authenticate_and_authorize_normal_action = lambda *_: None
key = iam.create_access_key("tester", "AKIA")
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("ready", server.get_host_and_port()[1], key.access_key_id, key.secret_access_key, flush=True)
while os.getppid() > 1:
    time.sleep(1)
"""


class Moto(S3Service):
    """moto: another program's idea of S3, in Python, which checks signatures and permissions."""

    def __init__(self, fleet):
        self.process = fleet.start("moto", sys.executable, "-c", MOTO)
        _, port, *self.keys = self.process.line("ready").split()
        self.serve_at(int(port))
        f.until(lambda: self.put("/models", b""), "moto to make a bucket", pause=0.2)


def has_moto():
    return importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask_cors") is not None


# ---- the scripted server ----

Request = collections.namedtuple("Request", "method path query headers first last number")


class Fault:
    """What is wrong with one answer. Of status: the whole answer. The others spoil a right one."""

    def __init__(self, status=None, headers=None, body=b"", cut=None, shift=0, whole=False, short=0, pace=None, etag=None,
                 add=None, delay=0.0):
        self.status, self.headers, self.body = status, headers or {}, body
        self.cut, self.shift, self.whole, self.short, self.pace, self.etag, self.add, self.delay = \
            cut, shift, whole, short, pace, etag, add, delay


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass


def serve(handler):
    """A server of loopback with this handler, running on a thread of its own."""
    http_server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http_server.serve_forever, args=(0.05,), daemon=True).start()
    return http_server


class Scripted:
    """Serves files by name. `script(request)` returns a Fault, or None for the right answer; request.number counts the
    requests of that path with that first byte, from 1. As S3: /bucket?list-type=2 lists the names."""

    def __init__(self, files, script=None, page=1000, ignore_if_match=False):
        self.files, self.script, self.page, self.ignore_if_match = files, script or (lambda request: None), page, ignore_if_match
        self.requests, self.lock, self.seen, self.etags = [], threading.Lock(), collections.Counter(), {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.answer(self, "GET")

            def do_HEAD(self):
                server.answer(self, "HEAD")

            def log_message(self, *_):
                pass

        self.http = serve(Handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def env(self, **more):
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", **more}

    def count(self, part=""):
        with self.lock:
            return sum(part in r.path for r in self.requests)

    def etag(self, path):
        with self.lock:
            if path not in self.etags:
                self.etags[path] = '"%s"' % hashlib.md5(self.files[path]).hexdigest()
            return self.etags[path]

    def note(self, handler, method):
        url = urllib.parse.urlsplit(handler.path)
        first = last = None
        given = handler.headers.get("Range", "")
        if given.startswith("bytes="):
            first, last = (int(x) for x in given[6:].split("-"))
        with self.lock:
            self.seen[(url.path, first)] += 1
            request = Request(method, urllib.parse.unquote(url.path), url.query, dict(handler.headers), first, last,
                              self.seen[(url.path, first)])
            self.requests.append(request)
        return request

    def answer(self, handler, method):
        request = self.note(handler, method)
        fault = self.script(request) or Fault()
        if fault.delay:
            time.sleep(fault.delay)
        if fault.status:
            return self.send(handler, method, fault.status, fault.headers, fault.body)
        if "list-type=2" in request.query:
            return self.send(handler, method, 200, {"Content-Type": "application/xml"}, self.list(request))
        data = self.files.get(request.path)
        if data is None:
            return self.send(handler, method, 404, {}, b"nothing here")
        etag = fault.etag or self.etag(request.path)
        wanted = request.headers.get("If-Match")
        if wanted and wanted != etag and not self.ignore_if_match:
            return self.send(handler, method, 412, {}, b"")
        headers = {"ETag": etag, "Accept-Ranges": "bytes", **fault.headers}
        if request.first is None or fault.whole:
            return self.send(handler, method, 200, headers, data, fault)
        if request.first >= len(data):
            return self.send(handler, method, 416, {"Content-Range": f"bytes */{len(data)}"}, b"")
        last = min(request.last, len(data) - 1)
        headers["Content-Range"] = f"bytes {request.first + fault.shift}-{last + fault.shift}/{len(data)}"
        return self.send(handler, method, 206, headers, data[request.first:last + 1], fault)

    def send(self, handler, method, status, headers, body, fault=None):
        fault = fault or Fault()
        if fault.add:
            body = body + fault.add
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) - fault.short))
        handler.end_headers()
        if method == "HEAD":
            return
        if fault.short:
            body = body[:len(body) - fault.short]
        if fault.cut is not None:
            handler.wfile.write(body[:fault.cut])
            handler.wfile.flush()
            # a reset, and not before the bytes are read: what lies unread would be lost with it
            f.until(lambda: unsent(handler.connection) == 0, "the bytes to be read", 10)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            return
        if fault.pace:
            try:
                for at in range(0, len(body), fault.pace):
                    handler.wfile.write(body[at:at + fault.pace])
                    handler.wfile.flush()
                    time.sleep(0.1)
            except OSError:
                handler.close_connection = True
            return
        handler.wfile.write(body)

    def list(self, request):
        query = urllib.parse.parse_qs(request.query, keep_blank_values=True)
        bucket, prefix = request.path.rstrip("/"), query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        keys = sorted(name[len(bucket) + 1:] for name in self.files if name.startswith(f"{bucket}/{prefix}"))
        keys = [k for k in keys if k > after and ("delimiter" not in query or "/" not in k[len(prefix):])]
        more = len(keys) > self.page
        keys = keys[:self.page]
        out = ['<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
               f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"]
        if more:
            out.append(f"<NextContinuationToken>{xml.sax.saxutils.escape(keys[-1])}</NextContinuationToken>")
        for key in keys:
            out.append(f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><ETag>&quot;x&quot;</ETag>"
                       f"<Size>{len(self.files[f'{bucket}/{key}'])}</Size></Contents>")
        return ("".join(out) + "</ListBucketResult>").encode()


def unsent(connection):
    """Bytes of a socket that the other side has not acknowledged."""
    import fcntl
    import termios
    return struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]


def walk(folder):
    """(path, name beneath the folder) of each file."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            yield path, os.path.relpath(path, folder)


def files_of(folder, prefix):
    found = {}
    for path, name in walk(folder):
        with open(path, "rb") as data:
            found[f"{prefix}/{name}"] = data.read()
    return found
