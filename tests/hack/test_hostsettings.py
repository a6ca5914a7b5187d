"""What a build step may know of the machine, and that it stays out of the image."""

from pathlib import Path

from localcluster.hostsettings import FOLDER, HostSettings, chosen_variables, lend_files


def test_only_variables_about_reaching_an_index_are_lent() -> None:
    environment = {
        "HTTPS_PROXY": "http://proxy:1",
        "no_proxy": "localhost",
        "PIP_INDEX_URL": "http://mirror/simple",
        "UV_HTTP_TIMEOUT": "60",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_CONFIG_FILE": "/dev/null",
        "UV_CONFIG_FILE": "/dev/null",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/root",
    }
    assert set(chosen_variables(environment)) == {
        "HTTPS_PROXY",
        "no_proxy",
        "PIP_INDEX_URL",
        "UV_HTTP_TIMEOUT",
        "PIP_CONFIG_FILE",
        "UV_CONFIG_FILE",
    }


def test_files_that_variables_name_are_lent_below_a_folder_that_vanishes() -> None:
    variables = {
        "PIP_CERT": "/etc/ca.crt",
        "SSL_CERT_FILE": "/etc/ca.crt",
        "PIP_CONFIG_FILE": "/no",
    }
    changed, files = lend_files(variables, lambda path: path == Path("/etc/ca.crt"))
    inside = f"{FOLDER}/0-ca.crt"
    assert FOLDER.startswith("/run/")
    assert files == (("/etc/ca.crt", inside),)
    assert changed == {"PIP_CERT": inside, "SSL_CERT_FILE": inside, "PIP_CONFIG_FILE": "/no"}


def test_apt_sources_are_lent_to_images_of_the_same_suite_only() -> None:
    other = HostSettings({}, (), ('Acquire::http::Proxy "http://p";',), apt_suite="noble")
    script = other.mount_script("bookworm")
    assert "sourceparts" not in script
    assert "Acquire::http::Proxy" in script
    assert other.apt_sources("bookworm") == []
