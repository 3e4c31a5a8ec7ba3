#include "cli/commands.h"

#include "cli/app.h"
#include "cli/command.h"

namespace dsec::cli {
namespace {

void add_traj(Command& root) {
  Command& traj = root.group("traj", "Trajectories: what was done to sandboxes");
  add_traj_ls(traj);
  add_traj_show(traj);
  add_traj_diff(traj);
  add_traj_export(traj);
  add_traj_import(traj);
  add_traj_report(traj);

  add_traj_rm(traj);
}

void add_net(Command& root) {
  Command& net = root.group("net", "Networks of sandboxes: what they may reach, and what they asked for");
  add_net_show(net);
  add_net_log(net);
  add_net_set(net);
}

void add_session(Command& root) {
  Command& session = root.group("session", "Shells of a sandbox that keep their state between commands");
  add_session_open(session);
  add_session_run(session);
  add_session_ls(session);
  add_session_close(session);
}

void add_layer(Command& root) {
  Command& layer = root.group("layer", "Layers of this host's store");
  add_layer_ls(layer);
  add_layer_inspect(layer);
  add_layer_tag(layer);
  add_layer_rm(layer);
  add_layer_verify(layer);
  add_layer_export(layer);
  add_layer_files(layer);
  add_layer_diff(layer);
  add_layer_mount(layer);
  add_layer_umount(layer);
}

void add_registry(Command& root) {
  Command& registry = root.group("registry", "Registries: directories, 3FS mounts and servers that hold layers");
  add_registry_ls(registry);
  add_registry_add(registry);
  add_registry_rm(registry);
  add_registry_tags(registry);
  add_registry_check(registry);
  add_registry_index(registry);
  add_registry_trace(registry);
  add_registry_gc(registry);
  add_registry_sync(registry);
}

void add_cache(Command& root) {
  Command& cache = root.group("cache", "What of the store can be had again from registries, and what stays here");
  add_cache_ls(cache);
  add_cache_pin(cache);
  add_cache_prune(cache);
  add_cache_warm(cache);
}

void add_env(Command& root) {
  Command& env = root.group("env", "Environments of a dsec.yaml");
  add_env_schema(env);
  add_env_lock(env);
  add_env_check(env);
  add_env_ls(env);
  add_env_inspect(env);
}

void add_context(Command& root) {
  Command& context = root.group("context", "Contexts: other hosts whose sandboxes dsec works on");
  add_context_add(context);
  add_context_ls(context);
  add_context_rm(context);
  add_context_use(context);
}

void add_fn(Command& root) {
  Command& fn = root.group("fn", "Function calls: one command in a sandbox of its own, with a verdict");
  add_fn_run(fn);
  add_fn_judge(fn);
  add_fn_bench(fn);
  add_fn_ls(fn);
  add_fn_pool(fn);
}

void add_obd(Command& root) {
  Command& obd = root.group("obd", "OverlayBD: block devices made of layers");
  add_obd_create(obd);
  add_obd_commit(obd);
  add_obd_info(obd);
  add_obd_check(obd);
  add_obd_cat(obd);
}

void add_vm(Command& root) {
  Command& vm = root.group("vm", "Virtual machines: what guests are started with, and their screens");
  add_vm_build(vm);
  add_vm_screenshot(vm);
  add_vm_type(vm);
  add_vm_key(vm);
  add_vm_click(vm);
  add_vm_move(vm);
  add_vm_scroll(vm);
  add_vm_drag(vm);
  add_vm_console(vm);
  add_vm_vnc(vm);
  Command& kernel = vm.group("kernel", "Kernels of guests");
  add_vm_kernel_import(kernel);
  add_vm_kernel_ls(kernel);
  add_vm_kernel_rm(kernel);
  add_vm_warm(vm);
  add_vm_save(vm);
  add_vm_restore(vm);
  Command& snapshot = vm.group("snapshot", "Guests and sandboxes that were saved to go on from");
  add_vm_snapshot_ls(snapshot);
  add_vm_snapshot_rm(snapshot);
}

void add_system(Command& root) {
  Command& system = root.group("system", "This host's dsec");
  add_system_df(system);
}

struct Entry {
  std::string_view name;
  void (*add)(Command& root);
};

// In the order of help.
constexpr Entry kCommands[] = {
    {"import", add_import},
    {"build", add_build},
    {"publish", add_publish},
    {"pull", add_pull},
    {"run", add_run},
    {"create", add_create},
    {"exec", add_exec},
    {"shell", add_shell},
    {"attach", add_attach},
    {"commands", add_commands},
    {"kill", add_kill},
    {"http", add_http},
    {"forward", add_forward},
    {"watch", add_watch},
    {"ps", add_ps},
    {"inspect", add_inspect},
    {"logs", add_logs},
    {"cp", add_cp},
    {"diff", add_diff},
    {"stats", add_stats},
    {"stop", add_stop},
    {"rm", add_rm},
    {"update", add_update},
    {"wait", add_wait},
    {"pause", add_pause},
    {"resume", add_resume},
    {"snapshot", add_snapshot},
    {"commit", add_commit},
    {"fork", add_fork},
    {"replay", add_replay},
    {"traj", add_traj},
    {"session", add_session},
    {"net", add_net},
    {"layer", add_layer},
    {"registry", add_registry},
    {"cache", add_cache},
    {"env", add_env},
    {"fn", add_fn},
    {"obd", add_obd},
    {"vm", add_vm},
    {"edge", add_edge},
    {"context", add_context},
    {"gc", add_gc},
    {"doctor", add_doctor},
    {"system", add_system},
    {"completion", add_completion},
    {"version", add_version},
};

}  // namespace

void declare_commands(Command& root, std::string_view only) {
  for (const Entry& entry : kCommands)
    if (entry.name == only) return entry.add(root);
  for (const Entry& entry : kCommands) entry.add(root);
}

}  // namespace dsec::cli
