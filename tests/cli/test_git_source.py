"""git: sources through the real program: servers, credentials, errors, and making a layer again."""

import pytest
from git_repo import GitRepo
from git_server import GitServer
from ssh_server import SshAgent, SshServer


@pytest.fixture
def repo(work):
    made = GitRepo(work / "made")
    made.first = made.commit(a="one\n")
    made.second = made.commit(a="two\n")
    made("clone", "-q", "--bare", ".", str(work / "served" / "r.git"))
    return made


def inputs_of(dsec, ref="workspace/x"):
    return dsec.json("layer", "inspect", ref)[0]["manifest"]["provenance"]["inputs"]


def no_leftovers(dsec):
    return not list(dsec.home.glob("cache/.tmp-*")) and dsec.json("layer", "ls") == []


def test_a_server_and_a_path_give_the_same_layer(dsec, work, repo):
    with GitServer(work / "served") as server:
        remote = dsec.json("import", "workspace/x", f"git:{server.url}/r.git@main")
    local = dsec.json("import", "workspace/x", f"git:{repo.path}@{repo.second}")
    assert remote["digest"] == local["digest"]
    assert "127.0.0.1" not in str(remote) and str(work) not in str(local)
    assert not list(dsec.home.glob("cache/.tmp-*"))


def test_the_servers_head_is_what_a_url_without_a_revision_means(dsec, work, repo):
    with GitServer(work / "served") as server:
        dsec.ok("import", "workspace/x", f"git:{server.url}/r.git")
        assert inputs_of(dsec)["commit"] == repo.second
        dsec.ok("import", "workspace/x", f"git:{server.url}/r.git@HEAD~1")
        assert inputs_of(dsec)["commit"] == repo.first


def test_a_commit_that_no_branch_reaches_is_fetched_by_its_id(dsec, work, repo):
    served = work / "served" / "r.git"
    repo("checkout", "-q", "--detach")
    stray = repo.commit(a="stray\n")
    repo("push", "-q", str(served), f"{stray}:refs/pull/1/head")
    repo("--git-dir", str(served), "config", "uploadpack.allowAnySHA1InWant", "true")
    with GitServer(work / "served") as server:
        dsec.ok("import", "workspace/x", f"git:{server.url}/r.git@{stray}")
        assert inputs_of(dsec)["commit"] == stray
        # Full history means every ref, those that git does not fetch by itself, too.
        dsec.ok("import", "workspace/full", f"git:{server.url}/r.git@main", "--history", "full")
    assert "refs" in inputs_of(dsec, "workspace/full")


def test_credentials_come_from_the_url_netrc_and_helpers(dsec, work, repo):
    with GitServer(work / "served", login=("me", "s3cret")) as server:
        host = server.url.removeprefix("http://")
        message = dsec.fails(1, "import", "workspace/x", f"git:{server.url}/r.git@main")
        assert "credentials tried: netrc" in message and "~/.netrc" in message
        assert no_leftovers(dsec)
        message = dsec.fails(1, "import", "workspace/x", f"git:http://me:wr0ng@{host}/r.git@main")
        assert "wr0ng" not in message

        dsec.ok("import", "workspace/x", f"git:http://me:s3cret@{host}/r.git@main")
        (work / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
        dsec.ok("import", "workspace/x", f"git:{server.url}/r.git@main", env={"HOME": str(work)})
        (work / ".netrc").unlink()
        (work / ".gitconfig").write_text(
            f'[credential "{server.url}"]\n\thelper = "!f() {{ echo username=me; echo password=s3cret; }}; f"\n')
        dsec.ok("import", "workspace/x", f"git:{server.url}/r.git@main", env={"HOME": str(work)})
        assert "s3cret" not in str(dsec.json("layer", "inspect", "workspace/x"))


def test_an_ssh_agents_key_opens_a_private_repository(dsec, work, repo):
    (work / ".ssh").mkdir()
    with SshAgent(work) as agent, SshServer(agent.public) as server:
        source = f"git:ssh://me@127.0.0.1:{server.port}{work}/served/r.git@main"
        env = {"SSH_AUTH_SOCK": str(agent.socket)}
        # Nobody is trusted who is not known, and the key is not even offered.
        message = dsec.fails(1, "import", "workspace/x", source, env=env)
        assert "ssh 127.0.0.1 once" in message and server.asked == [], message
        (work / ".ssh" / "known_hosts").write_text(server.known_host)
        message = dsec.fails(1, "import", "workspace/x", source)
        assert "credentials tried: the ssh agent" in message and "ssh-add" in message, message
        assert no_leftovers(dsec)
        dsec.ok("import", "workspace/x", source, env=env)
        assert inputs_of(dsec)["commit"] == repo.second
        assert server.asked and all(asked.startswith("me ecdsa") for asked in server.asked)


def test_a_repositorys_own_helper_is_never_asked(dsec, work, repo):
    mark = work / "mark"
    repo("config", "credential.helper", f"!touch {mark}; false")
    with GitServer(work / "served", login=("me", "s3cret")) as server:
        dsec.fails(1, "import", "workspace/x", f"git:{server.url}/r.git@main", cwd=repo.path, env={"HOME": "/nonexistent"})
    assert not mark.exists()


def test_the_callers_git_configuration_has_no_say(dsec, work, repo):
    (repo.path / ".gitattributes").write_text("* text=auto\n")
    repo.commit()
    plain = dsec.json("import", "workspace/x", f"git:{repo.path}")
    (work / ".gitconfig").write_text("[core]\n\tautocrlf = true\n\teol = crlf\n\tattributesFile = /etc/passwd\n")
    env = {"HOME": str(work), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true",
           "GIT_DIR": "/nonexistent", "GIT_OBJECT_DIRECTORY": "/nonexistent", "GIT_INDEX_FILE": "/nonexistent"}
    assert dsec.json("import", "workspace/x", f"git:{repo.path}", env=env)["digest"] == plain["digest"]


def test_what_is_not_there_is_told_and_nothing_stays(dsec, work, repo):
    with GitServer(work / "served") as server:
        assert "404" in dsec.fails(1, "import", "workspace/x", f"git:{server.url}/none.git@main")
        assert "'nowhere'" in dsec.fails(1, "import", "workspace/x", f"git:{server.url}/r.git@nowhere")
        url = server.url
    assert "127.0.0.1" in dsec.fails(1, "import", "workspace/x", f"git:{url}/r.git@main")
    assert "run programs" in dsec.fails(2, "import", "workspace/x", "git:ext::sh -c touch% /tmp/x")
    assert no_leftovers(dsec)


def test_a_layer_made_again_is_compared(dsec, work, repo):
    dsec.ok("import", "workspace/x", f"git:{repo.path}@main")
    repo("clone", "-q", "--bare", ".", str(work / "elsewhere.git"))
    assert "the same layer" in dsec.ok("layer", "verify", "--rebuild", "workspace/x", "--from", f"git:{work}/elsewhere.git@main")
    result = dsec.run("layer", "verify", "--rebuild", "workspace/x", "--from", f"git:{repo.path}@main~1")
    assert result.code == 3 and f"input commit: was {repo.second}, is {repo.first}" in result.out
    (work / "dsec.yaml").write_text(f"version: 1\nlayers:\n  workspace/x:\n    from: git:{repo.path}@main\n")
    assert "the same layer" in dsec.ok("layer", "verify", "--rebuild", "workspace/x")
    (work / "dsec.yaml").unlink()
    assert "--from SOURCE" in dsec.fails(2, "layer", "verify", "--rebuild", "workspace/x")
