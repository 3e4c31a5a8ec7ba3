"""Sandboxes: made as asked, changed, branched, ended; and whose they are."""

import asyncio
import datetime

import leftovers
import pytest
from libdsec import DSecClient, DSecContainerRunArgs, DSecError, DSecTimeoutError, DSecUsageError

BOX = DSecContainerRunArgs("base/box", lifetime=300)


async def test_a_sandbox_is_what_was_asked_for(client):
    args = DSecContainerRunArgs("base/box", name="asked", memory_limit_mb=64, cpu_cores_limit=0.5, pids_limit=50, output_limit_mb=1,
                                ttl_running_stop=1.5, ttl_running_pause=60, lifetime=300, init_user="user", labels={"suite": "sdk"},
                                hostname="here", tmpfs={"/scratch": 4}, cpu_class="batch")
    box = await client.run_container(args)
    spec = (await box.inspect()).spec
    assert spec["limits"].items() >= {"memory": 64 << 20, "cpus": 0.5, "pids": 50, "output": 1 << 20, "class": "batch"}.items()
    assert (spec["idle_ms"], spec["idle_pause_ms"], spec["lifetime_ms"], spec["hostname"]) == (1500, 60_000, 300_000, "here")
    assert (await box.run_shell("hostname; id -un; df -m /scratch | tail -n 1 | awk '{print $2}'")).stdout == "here\nuser\n4\n"
    assert box.info.labels == {"suite": "sdk"} and box.info.running and box.info.created.tzinfo == datetime.timezone.utc
    ended = await box.wait(timeout=30)
    assert (ended.state, ended.result) == ("stopped", None) and "idle" in ended.reason


async def test_layers_are_composed_as_dsec_does_it(own, work):
    (work / "Dockerfile").write_text('FROM base/box\nENV X=base PATH=/opt:/bin\nWORKDIR /srv\nENTRYPOINT ["/bin/sh"]\nCMD ["-c", "true"]\n')
    own.ok("import", "base/image", f"dockerfile:{work}")
    (work / "tools").mkdir()
    (work / "tools/run").write_text("tool\n")
    own.ok("import", "toolkit/tools", "--to", "/opt", f"dir:{work}/tools")
    own.ok("create", "--name", "made", "-e", "X=mine", "-e", "Y=1", "-m", "64m", "--idle", "5m", "--allow", "pypi", "--deny", "npm", "base/image",
           "toolkit/tools")
    own.ok("snapshot", "made", "snapshot/made:1")
    own.ok("create", "--name", "again", "snapshot/made:1")
    async with DSecClient(own.edge().url) as client:
        box = await client.run_container(DSecContainerRunArgs(
            "base/image", layers=["toolkit/tools"], env={"X": "mine", "Y": "1"}, memory_limit_mb=64, ttl_running_stop=300,
            network_rules={"pypi": True, "npm": False}))
        again = await client.run_container(DSecContainerRunArgs("snapshot/made:1"))
        for name, ours in (("made", box), ("again", again)):
            theirs = own.json("inspect", name)[0]["spec"]
            mine = own.json("inspect", ours.id)[0]["spec"]
            for spec in (theirs, mine):
                del spec["name"], spec["hostname"]
            assert mine == theirs
        with pytest.raises(DSecUsageError, match="no base layer is given"):
            await client.run_container(DSecContainerRunArgs("toolkit/tools"))
        with pytest.raises(DSecUsageError, match="an environment has one base"):
            await client.run_container(DSecContainerRunArgs("base/box", layers=["base/image"]))
        with pytest.raises(DSecUsageError, match="given twice"):
            await client.run_container(DSecContainerRunArgs("base/box", layers=["base/box:latest"]))


async def test_what_is_wrong_with_a_request_is_told(client):
    with pytest.raises(DSecUsageError) as caught:
        await client.run_container(DSecContainerRunArgs("base/none"))
    assert "no layer 'base/none:latest' in the store" in str(caught.value) and "base/box:latest" in caught.value.hints[0]
    with pytest.raises(DSecUsageError, match="there is no network preset 'unknown'"):
        await client.run_container(DSecContainerRunArgs("base/box", network_rules={"unknown": True}))
    with pytest.raises(DSecUsageError, match="either the host's network"):
        await client.run_container(DSecContainerRunArgs("base/box", network_rules={}, host_network=True))


async def test_the_network_is_what_rules_allow(client):
    box = await client.run_container(DSecContainerRunArgs("base/box", lifetime=300, network_rules={"example.test": True, "10.9.0.0/16": False},
                                                          network_phases={"verify": {}}))
    report = await box.network()
    assert report.plan["allow"] == ["example.test"] and report.plan["deny"] == ["10.9.0.0/16"] and report.plan["phases"]["verify"]["allow"] == []
    assert not (await box.run_shell("wget -q -O- http://other.test/", timeout=20)).ok
    denied = [record for record in await box.network_log() if record.get("host") == "other.test"]
    assert denied and denied[0]["verdict"] == "deny" and (await box.network()).denied >= 1
    assert (await box.set_network(phase="verify"))["phase"] == "verify"
    assert (await box.set_network({"pypi": True}))["phases"]["verify"]["allow"] == ["pypi.test"]


async def test_a_branch_has_the_files_and_goes_its_own_way(client):
    box = await client.run_container(BOX)
    await box.run_shell("echo draft > /root/answer")
    forks = await box.fork(2, name="try", labels={"try": "1"})
    assert [fork.name for fork in forks] == ["try-1", "try-2"]
    await forks[0].run_shell("echo one >> /root/answer")
    assert (await forks[1].run_shell("cat /root/answer")).stdout == "draft\n"
    assert {one.id for one in await client.sandboxes(labels={"try": ""})} == {fork.id for fork in forks}
    changed = {change.path: change.kind for change in await forks[0].changes()}
    assert changed["/root/answer"] in ("added", "modified")
    assert b"+one" in await forks[0].patch() and (await forks[0].changes_tar())[257:262] == b"ustar"
    assert [(one.path, one.added_lines) for one in await forks[0].change_stat() if one.path == "/root/answer"][0][1] >= 1
    snapshot = await forks[0].snapshot("snapshot/one:1", labels={"a": "b"})
    layer = await client.layer("snapshot/one:1")
    assert layer.digest == snapshot.digest == snapshot.layers[-1] and layer.kind == "snapshot" and layer.labels == {"a": "b"}
    again = await client.run_container(DSecContainerRunArgs("snapshot/one:1", lifetime=300))
    assert (await again.run_shell("cat /root/answer")).stdout == "draft\none\n"


async def test_it_is_paused_updated_measured_and_waited_for(client):
    box = await client.run_container(BOX)
    await box.pause()
    assert (await box.inspect()).state == "paused"
    await box.resume()
    await box.pause()
    assert (await box.run_shell("echo awake")).stdout == "awake\n"
    info = await box.update(pids_limit=77, ttl_running_stop=9, labels={"a": "1", "b": "2"})
    assert (info.spec["limits"]["pids"], info.spec["idle_ms"]) == (77, 9000)
    assert (await box.update(labels={"a": None}, ttl_running_stop=0)).labels == {"b": "2"}
    stats = await box.stats()
    assert stats.pids >= 1 and stats.pids_limit == 77 and stats.cpu_time > 0
    with pytest.raises(DSecTimeoutError, match="has not ended within 0.2 s, and goes on"):
        await box.wait(timeout=0.2)
    waiting = asyncio.ensure_future(box.wait())
    await asyncio.sleep(0.2)
    await box.stop(grace=0)
    assert (await waiting).state == "stopped"
    await box.stop()
    assert box.id in {one.id for one in await client.sandboxes(all=True)} and box.id not in {one.id for one in await client.sandboxes()}
    await box.remove()
    await box.remove()


async def test_what_was_done_can_be_read_also_when_it_is_gone(client):
    box = await client.run_container(BOX)
    await box.run_shell("echo said", op_id="say")
    await box.write_file("/tmp/x", "y", op_id="put")
    operation = await box.operation("say")
    assert (operation.kind, operation.outcome, operation.stdout, operation.origin) == ("exec", "ok", b"said\n", "sdk")
    assert await box.operation("other") is None
    await box.remove(force=True)
    trajectory = await client.trajectory(box.id)
    assert [(one.op_id, one.kind) for one in trajectory.operations] == [("say", "exec"), ("put", "write")] and not trajectory.live
    assert trajectory.header["trajectory"] == box.id and trajectory.damage == ""
    assert box.id in {one.id for one in await client.trajectories()}
    await client.remove_trajectory(box.id)
    with pytest.raises(DSecError):
        await client.trajectory(box.id)


async def test_a_client_ends_what_it_made_and_nothing_else(edge, shared):
    async with DSecClient(edge) as client:
        first, kept = await client.run_container(BOX), await client.run_container(BOX)
        kept.keep()
        async with await client.run_container(BOX) as within:
            pass
        assert within.id not in leftovers.sandboxes_of(shared.home)
        async with DSecClient(edge) as other:
            looked_up = await other.sandbox(first.id)
            async with looked_up:
                assert (await looked_up.run_shell("true")).ok
        assert (await first.run_shell("true")).ok
    assert leftovers.sandboxes_of(shared.home) == [kept.id]
    async with DSecClient(edge) as client:
        await (await client.sandbox(kept.id)).remove(force=True)


async def test_nothing_is_left_of_a_sandbox_that_was_given_up(client, shared):
    for delay in (0, 0.001, 0.003, 0.006, 0.01, 0.015):
        task = asyncio.ensure_future(client.run_container(BOX))
        await asyncio.sleep(delay)
        if task.done():
            await task.result().remove(force=True)
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leftovers.sandboxes_of(shared.home) == []
    with pytest.raises(DSecTimeoutError, match="did not run within 0.001 s, and was taken back"):
        await client.run_container(BOX, timeout=0.001)
    assert leftovers.sandboxes_of(shared.home) == []
    with pytest.raises(ZeroDivisionError):
        async with await client.run_container(BOX):
            1 / 0
    assert leftovers.sandboxes_of(shared.home) == []


async def test_many_are_made_at_once_and_failures_stand_for_themselves(client):
    wanted = [DSecContainerRunArgs("base/none" if number == 3 else "base/box", labels={"n": str(number)}, lifetime=300) for number in range(8)]
    items = [item async for item in client.run_batch(wanted, concurrency=4)]
    assert sorted(item.index for item in items) == list(range(8))
    assert [item.index for item in items if item.error] == [3]
    assert all(item.sandbox.info.labels == {"n": str(item.index)} for item in items if item.sandbox)
    left_early = client.run_batch([BOX] * 20, concurrency=2)
    first = await left_early.__anext__()
    await left_early.aclose()
    assert first.sandbox.id in {one.id for one in await client.sandboxes()}
