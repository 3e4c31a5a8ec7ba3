#pragma once

namespace dsec::cli {

class Command;

// One function for each verb, in a file of its name below commands/; commands.cc has them in the order of help.
void add_import(Command& root);
void add_build(Command& root);
void add_publish(Command& root);
void add_pull(Command& root);
void add_run(Command& root);
void add_create(Command& root);
void add_exec(Command& root);
void add_shell(Command& root);
void add_attach(Command& root);
void add_commands(Command& root);
void add_kill(Command& root);
void add_http(Command& root);
void add_forward(Command& root);
void add_watch(Command& root);
void add_ps(Command& root);
void add_inspect(Command& root);
void add_logs(Command& root);
void add_cp(Command& root);
void add_diff(Command& root);
void add_stats(Command& root);
void add_net_show(Command& net);
void add_net_log(Command& net);
void add_net_set(Command& net);
void add_stop(Command& root);
void add_update(Command& root);
void add_rm(Command& root);
void add_wait(Command& root);
void add_pause(Command& root);
void add_resume(Command& root);
void add_snapshot(Command& root);
void add_commit(Command& root);
void add_fork(Command& root);
void add_traj_ls(Command& traj);
void add_traj_show(Command& traj);
void add_traj_diff(Command& traj);
void add_traj_export(Command& traj);
void add_traj_import(Command& traj);
void add_traj_report(Command& traj);
void add_traj_rm(Command& traj);
void add_session_open(Command& session);
void add_session_run(Command& session);
void add_session_ls(Command& session);
void add_session_close(Command& session);
void add_layer_ls(Command& layer);
void add_layer_inspect(Command& layer);
void add_layer_tag(Command& layer);
void add_layer_rm(Command& layer);
void add_layer_verify(Command& layer);
void add_layer_export(Command& layer);
void add_layer_files(Command& layer);
void add_layer_diff(Command& layer);
void add_layer_mount(Command& layer);
void add_layer_umount(Command& layer);
void add_registry_ls(Command& registry);
void add_registry_add(Command& registry);
void add_registry_rm(Command& registry);
void add_registry_tags(Command& registry);
void add_registry_check(Command& registry);
void add_env_schema(Command& env);
void add_env_lock(Command& env);
void add_env_check(Command& env);
void add_env_ls(Command& env);
void add_env_inspect(Command& env);
void add_fn_run(Command& fn);
void add_fn_judge(Command& fn);
void add_fn_bench(Command& fn);
void add_fn_ls(Command& fn);
void add_fn_pool(Command& fn);
void add_replay(Command& root);
void add_gc(Command& root);
void add_doctor(Command& root);
void add_system_df(Command& system);
void add_completion(Command& root);
void add_version(Command& root);

}  // namespace dsec::cli
