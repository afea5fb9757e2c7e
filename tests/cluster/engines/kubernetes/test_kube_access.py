"""Where the API server is, who we are, and how it is spoken to."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.kube_things import PODS, pod
from takeup.cluster.engines.kubernetes import client as access_module
from takeup.cluster.engines.kubernetes.client import ApiAccess, ApiUnreachable, Client, RequestRefused, find_access
from takeup.errors import BadInput, MissingEngine


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"),
            *("-keyout", folder / "key.pem", "-out", folder / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def write_config(path: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config | more), "utf-8")  # all JSON is YAML
    return path


def test_a_token_of_a_kubeconfig_is_used(tmp_path: Path) -> None:
    found = find_access(write_config(tmp_path / "config", {"server": "http://10.0.0.1:80"}, {"token": "secret"}))

    assert (found.server, found.token(), found.tls) == ("http://10.0.0.1:80", "secret", None)


def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    found = find_access(write_config(tmp_path / "config", {"server": "http://a"}, {"tokenFile": "token"}))

    assert found.token() == "one"
    (tmp_path / "token").write_text("two\n")
    assert found.token() == "two"


def test_certificates_lie_in_files_or_in_the_kubeconfig(tmp_path: Path, keys: Path) -> None:
    data = base64.b64encode((keys / "certificate.pem").read_bytes()).decode()
    cluster = {"server": "https://a", "certificate-authority-data": data}
    user = {"client-certificate": str(keys / "certificate.pem"), "client-key": str(keys / "key.pem")}

    found = find_access(write_config(tmp_path / "config", cluster, user))

    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_REQUIRED
    assert len(found.tls.get_ca_certs()) == 1


def test_verification_is_off_only_where_the_kubeconfig_says_so(tmp_path: Path) -> None:
    found = find_access(write_config(tmp_path / "c", {"server": "https://a", "insecure-skip-tls-verify": True}, {}))

    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_NONE


def test_a_program_gives_the_token_and_is_asked_once_in_a_while(tmp_path: Path) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, pathlib\n"
        "path = pathlib.Path(os.environ['COUNT']); path.write_text(path.read_text() + 'x')\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "print(json.dumps({'status': {'token': 'from a program'}}))\n"
    )
    (tmp_path / "count").write_text("")
    plugin = {
        "command": sys.executable,
        "args": [str(script)],
        "env": [{"name": "COUNT", "value": str(tmp_path / "count")}],
    }
    found = find_access(write_config(tmp_path / "config", {"server": "http://a"}, {"exec": plugin}))

    assert [found.token(), found.token()] == ["from a program"] * 2
    assert (tmp_path / "count").read_text() == "x"


def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    plugin = {"command": "no-such-program-here"}
    found = find_access(write_config(tmp_path / "config", {"server": "http://a"}, {"exec": plugin}))

    with pytest.raises(BadInput, match="no-such-program-here"):
        found.token()


def test_another_context_can_be_chosen(tmp_path: Path) -> None:
    more = {"contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}]}
    path = write_config(tmp_path / "config", {"server": "http://a"}, {}, **more)

    assert find_access(path, "there").server == "http://a"
    with pytest.raises(BadInput, match=r"no entry 'here' in contexts \(known: there\)"):
        find_access(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("just words", "is no kubeconfig"), ("{", "cannot be read"), ("{}", "no entry ''")],
)
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config").write_text(text)

    with pytest.raises(BadInput, match=words):
        find_access(tmp_path / "config")


def test_broken_certificates_are_refused(tmp_path: Path) -> None:
    cluster = {"server": "https://a", "certificate-authority": "missing.pem"}

    with pytest.raises(BadInput, match="certificate-authority of the kubeconfig"):
        find_access(write_config(tmp_path / "config", cluster, {}))


def test_the_environment_names_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))

    with pytest.raises(BadInput, match="nowhere"):
        find_access()


def test_without_the_package_for_it_a_kubeconfig_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(MissingEngine, match=r"takeup\[k8s\]"):
        find_access(write_config(tmp_path / "config", {"server": "http://a"}, {}))


def test_inside_a_pod_the_service_account_is_used(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("mine")
    (tmp_path / "ca.crt").write_bytes((keys / "certificate.pem").read_bytes())
    monkeypatch.setattr(access_module, "POD_FOLDER", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    found = find_access()

    assert (found.server, found.token()) == ("https://[fd00::1]:6443", "mine")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(BadInput, match="KUBERNETES_SERVICE_HOST"):
        find_access()


@pytest.mark.parametrize("server", ["", "10.0.0.1", "ftp://a", "https://"])
def test_an_address_without_sense_is_refused(server: str) -> None:
    with pytest.raises(BadInput, match="expected an address"):
        ApiAccess(server)


# The client -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as server:
        yield server


def test_refusals_carry_status_and_reason(api: FakeApi) -> None:
    client = api.client()
    client.request("POST", PODS, pod("a"))

    with pytest.raises(RequestRefused, match="409 AlreadyExists: a already exists") as caught:
        client.request("POST", PODS, pod("a"))
    assert caught.value.status == 409
    client.close()


def test_one_connection_serves_many_requests(api: FakeApi) -> None:
    client = api.client()
    client.get(PODS)
    before = client._local.connection.sock
    for number in range(20):
        client.request("POST", PODS, pod(f"p{number}"))

    assert client._local.connection.sock is before
    client.close()


def test_a_connection_that_the_server_closed_is_opened_again(api: FakeApi) -> None:
    client = api.client()
    client.get(PODS)
    client._local.connection.sock.shutdown(2)

    assert client.get(PODS)["items"] == []
    client.close()


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_a_server_in_trouble_is_unreachable(api: FakeApi, code: int) -> None:
    api.fault = lambda method, path: code
    client = api.client()

    with pytest.raises(ApiUnreachable, match=str(code)):
        client.get(PODS)
    client.close()


def test_a_server_that_hangs_up_is_unreachable(api: FakeApi) -> None:
    api.fault = lambda method, path: 0
    client = api.client()

    with pytest.raises(ApiUnreachable, match="hung up"):
        client.get(PODS)


def test_nobody_at_the_address_is_unreachable() -> None:
    with pytest.raises(ApiUnreachable, match="does not answer"):
        Client(ApiAccess("http://127.0.0.1:9")).get("/version")


def test_a_watch_can_be_ended_from_outside(api: FakeApi) -> None:
    client = api.client()
    watch = client.watch(PODS, 30.0, resourceVersion=api.answer("GET", PODS, {})[1]["metadata"]["resourceVersion"])
    events = []
    with suppress(ApiUnreachable):
        for event in watch:
            events.append(event)
            watch.end()

    assert events == [{"type": "BEGUN"}]
