"""The example of a reverse proxy has the monitor's own address and limits."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from stream.settings import Settings
from tests.unit.deployment.manifests import PROJECT

PROXY = PROJECT / "deploy" / "proxy"
NGINX = (PROXY / "nginx.conf").read_text()


def test_proxy_has_the_limits_of_the_monitor() -> None:
    """These are the requests per second and at once, and the address that needs a sign-in."""
    fields = Settings.model_fields
    assert f"rate={fields['monitor_requests_per_second'].default:g}r/s" in NGINX
    assert f"burst={fields['monitor_burst'].default} " in NGINX
    host, port = fields["monitor_host"].default, fields["monitor_port"].default
    (place,) = re.findall(r"    location / \{.*?\n    \}", NGINX, re.DOTALL)
    assert f"proxy_pass http://{host}:{port};" in place
    assert "auth_request /oauth2/auth;" in place


def test_proxy_names_a_time_to_retry_for_its_own_limit() -> None:
    """An empty variable makes no header, so the monitor's own ``Retry-After`` stays alone."""
    assert re.search(r"map \$limit_req_status \$retry_after \{[^}]*\bREJECTED 1;\s*\}", NGINX)
    assert "    add_header Retry-After $retry_after always;\n" in NGINX


def test_proxy_asks_oauth2_proxy_at_its_address() -> None:
    """Both files name one address, and the sign-in returns to the server's name."""
    settings = tomllib.loads((PROXY / "oauth2-proxy.cfg").read_text())
    assert NGINX.count(f"proxy_pass http://{settings['http_address']};") == 2
    (name,) = re.findall(r"server_name (\S+);", NGINX)
    assert settings["redirect_url"] == f"https://{name}/oauth2/callback"
    assert settings["reverse_proxy"]
    assert settings["cookie_secure"]


def without_oauth2_proxy() -> str:
    """Return the file after the command of the production page."""
    page = (PROJECT / "docs" / "production.md").read_text()
    [(begin, end)] = re.findall(r"`sed -i '/([^/]+)/,/([^/]+)/d' nginx\.conf`", page)
    return re.sub(f"(?ms)^[^\n]*{begin}.*?{end}[^\n]*\n", "", NGINX)


def test_proxy_without_oauth2_proxy_passes_all_but_metrics() -> None:
    """After the command of the production page, TLS and the limits remain, and the monitor signs people in."""
    lines = [line for line in without_oauth2_proxy().splitlines() if not line.lstrip().startswith("#")]
    assert not re.search("oauth2|auth_request|sign_in", "\n".join(lines))
    assert [line.strip() for line in lines if "location" in line] == ["location = /metrics {", "location / {"]
    assert any("proxy_pass" in line for line in lines)
    assert any("limit_req zone" in line for line in lines)


@pytest.mark.parametrize("text", [NGINX, without_oauth2_proxy()], ids=["oauth2-proxy", "monitor"])
def test_nginx_accepts_the_configuration(tmp_path: Path, text: str) -> None:
    """nginx reads the file with a certificate in place."""
    nginx, openssl = shutil.which("nginx"), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is not installed")
    pair = ["-keyout", str(tmp_path / "proxy.key"), "-out", str(tmp_path / "proxy.pem")]
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a", *pair], check=True)
    site = tmp_path / "site.conf"
    site.write_text(text.replace("/etc/sotto", str(tmp_path)).replace("listen 443", "listen 24443"))
    main = tmp_path / "nginx.conf"
    folders = " ".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main.write_text(f"pid {tmp_path}/pid; events {{}} http {{ {folders} access_log off; include {site}; }}")
    checked = subprocess.run(
        [nginx, "-t", "-p", str(tmp_path), "-c", str(main)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
