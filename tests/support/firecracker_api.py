"""The rules of Firecracker's API for the requests that dsec sends, as its published OpenAPI description has them.

A field is (kind, required). A kind is a type, a set of words, a range of numbers, another table, or a list of one kind.
"""

BOOL, TEXT, COUNT = "bool", "text", "count"

TOKEN_BUCKET = {"size": (COUNT, True), "refill_time": (COUNT, True), "one_time_burst": (COUNT, False)}
RATE_LIMITER = {"bandwidth": (TOKEN_BUCKET, False), "ops": (TOKEN_BUCKET, False)}

# (method, path) -> (when, body); when: "before" the machine has started, "after" it, "paused", or "any".
REQUESTS = {
    ("GET", "/"): ("any", None),
    ("GET", "/version"): ("any", None),
    ("GET", "/balloon"): ("any", None),
    ("GET", "/balloon/statistics"): ("after", None),
    ("PUT", "/machine-config"): ("before", {
        "vcpu_count": ((1, 32), True), "mem_size_mib": ((1, 1 << 40), True), "smt": (BOOL, False),
        "track_dirty_pages": (BOOL, False), "huge_pages": ({"None", "2M"}, False)}),
    ("PUT", "/boot-source"): ("before", {
        "kernel_image_path": (TEXT, True), "initrd_path": (TEXT, False), "boot_args": (TEXT, False)}),
    ("PUT", "/drives/{id}"): ("before", {
        "drive_id": (TEXT, True), "is_root_device": (BOOL, True), "path_on_host": (TEXT, False),
        "is_read_only": (BOOL, False), "cache_type": ({"Unsafe", "Writeback"}, False), "partuuid": (TEXT, False),
        "io_engine": ({"Sync", "Async"}, False), "socket": (TEXT, False), "rate_limiter": (RATE_LIMITER, False)}),
    ("PATCH", "/drives/{id}"): ("after", {
        "drive_id": (TEXT, True), "path_on_host": (TEXT, False), "rate_limiter": (RATE_LIMITER, False)}),
    ("PUT", "/pmem/{id}"): ("before", {
        "id": (TEXT, True), "path_on_host": (TEXT, True), "root_device": (BOOL, False), "read_only": (BOOL, False),
        "rate_limiter": (RATE_LIMITER, False)}),
    ("PUT", "/vsock"): ("before", {
        "guest_cid": ((3, (1 << 32) - 1), True), "uds_path": (TEXT, True), "vsock_id": (TEXT, False)}),
    ("PUT", "/balloon"): ("before", {
        "amount_mib": (COUNT, True), "deflate_on_oom": (BOOL, True), "stats_polling_interval_s": (COUNT, False),
        "free_page_reporting": (BOOL, False), "free_page_hinting": (BOOL, False)}),
    ("PATCH", "/balloon"): ("after", {"amount_mib": (COUNT, True)}),
    ("PUT", "/entropy"): ("before", {"rate_limiter": (RATE_LIMITER, False)}),
    ("PUT", "/serial"): ("before", {"serial_out_path": (TEXT, False), "rate_limiter": (TOKEN_BUCKET, False)}),
    ("PUT", "/metrics"): ("before", {"metrics_path": (TEXT, True)}),
    ("PUT", "/actions"): ("any", {"action_type": ({"InstanceStart", "FlushMetrics", "SendCtrlAltDel"}, True)}),
    ("PATCH", "/vm"): ("after", {"state": ({"Paused", "Resumed"}, True)}),
    ("PUT", "/snapshot/create"): ("paused", {
        "snapshot_path": (TEXT, True), "mem_file_path": (TEXT, True), "snapshot_type": ({"Full", "Diff"}, False)}),
    ("PUT", "/snapshot/load"): ("before", {
        "snapshot_path": (TEXT, True),
        "mem_backend": ({"backend_type": ({"File", "Uffd"}, True), "backend_path": (TEXT, True)}, True),
        "track_dirty_pages": (BOOL, False), "resume_vm": (BOOL, False),
        "vsock_override": ({"uds_path": (TEXT, True)}, False)}),
}


def fault_of(kind, value, where):
    """What is wrong with a value, or None."""
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return f"{where} is no object"
        for name in value:
            if name not in kind:
                return f"unknown field `{name}` in {where}"
        for name, (inner, required) in kind.items():
            if name not in value:
                if required:
                    return f"missing field `{name}` in {where}"
                continue
            fault = fault_of(inner, value[name], f"{where}.{name}")
            if fault:
                return fault
        return None
    if isinstance(kind, set):
        return None if isinstance(value, str) and value in kind else f"unknown variant {value!r} of {where}"
    if isinstance(kind, tuple):
        fits = isinstance(value, int) and not isinstance(value, bool) and kind[0] <= value <= kind[1]
        return None if fits else f"{where} is {value!r}, not within {kind}"
    fits = {BOOL: isinstance(value, bool), TEXT: isinstance(value, str) and value != "",
            COUNT: isinstance(value, int) and not isinstance(value, bool) and value >= 0}[kind]
    return None if fits else f"{where} is {value!r}, which is no {kind}"


def rule_of(method, path):
    """The rule and the id that the path names; (None, None) for what Firecracker does not have."""
    if (method, path) in REQUESTS:
        return REQUESTS[method, path], None
    parent, _, name = path.rpartition("/")
    if name and name.replace("_", "").isalnum() and (method, parent + "/{id}") in REQUESTS:
        return REQUESTS[method, parent + "/{id}"], name
    return None, None


def judge(method, path, body, state):
    """What is wrong with a request to a machine in `state` ("Not started", "Running", "Paused"), or None."""
    rule, name = rule_of(method, path)
    if rule is None:
        return f"Invalid request method and/or path: {method} {path}"
    when, table = rule
    if when == "before" and state != "Not started":
        return "The requested operation is not supported after starting the microVM."
    if when in ("after", "paused") and state == "Not started":
        return "The requested operation is not supported before starting the microVM."
    if when == "paused" and state != "Paused":
        return "Cannot save the snapshot of a microVM that is not paused."
    if table is None:
        return None if body is None else "GET requests have no body"
    fault = fault_of(table, body, "body")
    if fault:
        return fault
    if name is not None and name not in (body.get("drive_id"), body.get("id")):
        return "The id from the path does not match the id from the body!"
    return None
