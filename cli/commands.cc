#include "cli/commands.h"

#include "cli/app.h"
#include "cli/command.h"

namespace dsec::cli {

void declare_commands(Command& root) {
  add_import(root);
  add_build(root);
  add_publish(root);
  add_pull(root);

  add_run(root);
  add_create(root);
  add_exec(root);
  add_shell(root);
  add_attach(root);
  add_ps(root);
  add_inspect(root);
  add_logs(root);
  add_cp(root);
  add_diff(root);
  add_stats(root);
  add_stop(root);
  add_rm(root);
  add_wait(root);
  add_replay(root);

  Command& traj = root.group("traj", "Trajectories: what was done to sandboxes");
  add_traj_ls(traj);
  add_traj_show(traj);
  add_traj_diff(traj);
  add_traj_rm(traj);

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

  Command& registry = root.group("registry", "Registries: directories and 3FS mounts that hold layers");
  add_registry_ls(registry);
  add_registry_add(registry);
  add_registry_rm(registry);
  add_registry_tags(registry);
  add_registry_check(registry);

  Command& env = root.group("env", "Environments of a dsec.yaml");
  add_env_schema(env);
  add_env_lock(env);
  add_env_check(env);
  add_env_ls(env);
  add_env_inspect(env);

  Command& fn = root.group("fn", "Function calls: one command in a sandbox of its own, with a verdict");
  add_fn_run(fn);
  add_fn_judge(fn);
  add_fn_bench(fn);
  add_fn_ls(fn);
  add_fn_pool(fn);

  add_gc(root);
  add_doctor(root);
  Command& system = root.group("system", "This host's dsec");
  add_system_df(system);
  add_completion(root);
  add_version(root);
}

}  // namespace dsec::cli
