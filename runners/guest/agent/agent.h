#pragma once

#include <asm/errno.h>

#include "runners/guest/config.h"
#include "runners/guest/memory.h"
#include "runners/protocol/guest_channel.h"

/// The agent: PID 1 of a virtual machine. It makes of the machine's drives what dsec makes of mounts on a host, starts
/// the keeper as dsec does there, and carries streams between the channel and what serves them. See
/// man/dsec-guest-channel.7.md.
namespace dsec::guest {

namespace channel = dsec::runners::channel;

/// Never returns: the machine ends with it.
[[noreturn]] void run_agent();
/// As a service of a system that has begun by itself, whose machine is the sandbox as a whole. Ends when dsec is
/// gone.
[[noreturn]] void run_service();

/// What epoll reports of a descriptor that has none of the other tags.
struct Watched {
  int fd;           ///< -1: none
  uint32_t events;  ///< as registered; 0: not at all
};

struct Stream {
  Stream* next;
  uint32_t number;
  channel::Service service;
  Watched socket;     ///< our end of what serves it
  int child;          ///< process that serves it; 0: none, or it has ended
  int errors;         ///< what it says of its failure; -1: none
  int status;         ///< of its end
  uint32_t credit;    ///< bytes that we may still send
  uint32_t room;      ///< bytes that dsec may still send
  uint32_t consumed;  ///< and were handed on since the last credit was given
  Buffer input;       ///< that the service has not taken yet
  bool readable;      ///< something is to be read of it
  bool input_ended;   ///< by dsec's Eof
  bool input_closed;  ///< and the service has been told; or it takes no more
  bool output_ended;  ///< nothing more comes of it
  bool abandoned;     ///< dsec has lost interest
  bool connecting;    ///< a TCP connection on its way
  bool tried_six;     ///< with IPv4 it was refused
  bool goes_out;      ///< a connection of the sandbox's, which we have opened
  bool unheard;       ///< of a machine that this one was a copy of: it goes on, and nobody hears what it says
  uint16_t port;
};

/// Of a sandbox that is held to a policy.
struct Egress {
  Watched listener, datagrams;  ///< 0: there is none
  int raw4, raw6;
  uint32_t connections, streams;  ///< with a socket; with those that are about to go
  uint32_t flow_count;
  void* flows;
  Buffer waiting;  ///< frames of flows
  bool turn;       ///< of these, after one of a stream
};

constexpr uint32_t kMostBound = 8;

struct Agent {
  int epoll, signals;
  Watched port;      ///< of the channel
  Watched listener;  ///< of vsock; -1 where the channel is a virtio-serial port
  Buffer received;
  Buffer control;  ///< frames that wait for the channel, ahead of all data
  Buffer current;  ///< what is being written
  size_t written;  ///< of `current`
  bool writable;
  channel::AgentState state;
  bool configured;
  bool service;      ///< PID 1 is another
  bool late_drives;  ///< the driver has only those that were asked for
  Stream* streams;
  uint32_t stream_count, turn;  ///< turn: number of the stream that was served last

  int modules;  ///< directory of the initramfs; -1: all are loaded that will be
  int helper;   ///< dsec-guest
  int program;  ///< this one, sealed

  uint32_t flags;           ///< channel::ConfigureFlags
  int keeper, init;         ///< pids; 0: none
  int root;                 ///< of the sandbox
  int network;              ///< its namespace; -1: the machine's own
  int disk;                 ///< the writable one; -1: none
  int group, parent_group;  ///< cgroups: the sandbox's, and the one that only a snapshot freezes
  bool frozen_disk;
  bool rests;  ///< what runs stands still, and the machine is to be frozen
  Egress egress;
  uint32_t last_outward;   ///< number of the stream that we opened last
  Text bound[kMostBound];  ///< where the first files of the configuration are
  bool machine_id_bound;   ///< its file is in the sandbox
  uint32_t hostname_file;  ///< number of the file that is bound over /etc/hostname; 0: none is
  Buffer configuration;    ///< the Configure frame, which texts point into
  Buffer reason;           ///< of its end
};
extern Agent agent;

// boot.cc
/// Makes /dev, /proc, /sys and a root that the agent can leave, and loads what every machine needs.
bool boot(Failure& failure);
/// What a service has instead: a root of its own beside that of the system, which nobody sees.
bool boot_service(Failure& failure);
/// The value of `name` in the kernel's command line, or null.
const char* kernel_argument(const char* name);

// modules.cc
/// Loads the modules of a group in their order; a machine whose kernel has them built in has no such group.
bool load_modules(const char* group, Failure& failure);
void forget_modules();

// port.cc
bool open_channel(Failure& failure);
/// Waits until dsec is there. False when it did not come in time.
bool await_dsec();
/// Of vsock: dsec has come.
void accept_channel();
/// The channel has ended: so does the machine, but for one that stands still for a snapshot.
void lose_channel();

// frames.cc
void on_channel(uint32_t events);
/// Writes what waits, data after control.
void pump();
/// Puts a frame among those that go ahead of data.
void send_control(channel::Type type, uint32_t stream, const void* data, size_t size);
void send_failed(const Failure& failure);
/// dsec breaks the protocol: nothing tells where its next frame begins.
[[noreturn]] void give_up(const char* why);

// streams.cc
void watch(Watched& watched, uint32_t events, void* owner);
void open_stream(uint32_t number, wire::Reader& reader);
/// Frames of a stream that is there; others belong to one that has just ended.
void take_data(uint32_t number, const char* data, size_t size);
void take_credit(uint32_t number, uint32_t bytes);
void take_end(uint32_t number);
void abandon_stream(uint32_t number);
/// A connection of the sandbox's.
void add_connection(uint32_t number, int socket);
/// All of them. In a guest that is quiesced, which may be a copy, what the keeper serves goes on unheard.
void abandon_streams();
void on_stream(Stream& stream, uint32_t events);
/// While the machine stands still nothing of a stream is told, and nothing goes on.
void rest_streams();
void wake_streams();
/// Whether a Data frame was put into agent.current.
bool next_data();
/// A process that serves a stream has ended.
bool reap_service(int pid, int status);
void sweep_streams();

// services.cc
/// 0 with stream.socket set, or a negative errno with `what` naming the attempt.
long start_service(Stream& stream, wire::Reader& reader, const char*& what);
/// A frame to the keeper, which is to answer with Done. 0 or a negative errno.
long tell_keeper(wire::Type type, const Buffer& text);
/// A connection that could not be made with IPv4 is tried with IPv6. A negative errno when neither works.
long finish_connection(Stream& stream);

// egress.cc
/// Makes the sandbox's only way out, which leads to us.
bool open_egress(Failure& failure);
bool may_accept();
void accept_connections();
void end_by_reset(int socket);

// datagrams.cc
bool may_take_datagrams();
void take_datagrams();
void end_idle_flows();
/// Without a word.
void forget_flows();

// control.cc
/// A frame of stream 0. False when it makes no sense.
bool handle_control(channel::Type type, const char* data, size_t size);

// machine.cc
/// Mounts the images and the writable disk.
bool mount_drives(wire::Reader& reader, Failure& failure);
/// A file below them all, for something to be bound over it without a trace in the writable layer.
bool make_mount_point(const char* path, Failure& failure);
/// Makes the sandbox's root, /sb, of all these.
bool stack_drives(Failure& failure);
/// What lies below the writable layer, merged: a descriptor or a negative errno.
long open_lower();
/// Another ext4 drive, at `target` of the agent's own.
bool mount_disk(const char* device, const char* target, Failure& failure);

// drives.cc
/// The path of the block device that a text of the configuration means; waits for it to appear. Null when it does not.
const char* find_drive(const Text& wanted, Buffer& path);

// late_drives.cc
/// The driver lets go of all drives.
bool release_drives(Failure& failure);
/// What was put on the bus while the guest was saved is looked for.
void find_new_devices();
/// It takes the first that it does not have. False when there is none.
bool take_next_drive();

// groups.cc
bool make_groups(Failure& failure);
/// Sets the limits of the configuration on the sandbox's group.
bool set_limits(wire::Reader& reader, Failure& failure);

// sandbox.cc
inline bool unreadable(Failure& failure) { return failure.set("read", "the configuration", -EPROTO), false; }
bool configure(const char* data, size_t size, Failure& failure);

// sandbox_mounts.cc
/// The sandbox finds this machine id from now on, where it has one at all. 0 or a negative errno.
long set_machine_id(const Text& machine_id);
/// The file of the configuration that is bound at `path` gets another content. 0 or a negative errno.
long rewrite_file(const Text& path, const Text& content);

// places.cc
/// What the keeper and the sandbox find of the machine: device nodes, mount points, the namespace of keepers.
bool make_places(Failure& failure);
bool make_namespaces(int& keepers, Failure& failure);
/// A detached copy of what is mounted at `path`, with these MOUNT_ATTR_*. A descriptor, or a negative errno.
long copy_mount(const char* path, uint64_t attributes, bool with_submounts = false);

// figures.cc
void send_figures();
/// A small file of the sandbox's cgroup: written, or its first number read.
long write_group_file(int group, const char* name, const char* text);
uint64_t read_group_number(int group, const char* name, const char* key);

// cold_memory.cc
/// Of a sandbox that runs, if its kernel can be asked.
void begin_asking();
/// Milliseconds until it is to be asked again; negative: never.
long until_asking();
void ask_for_cold_memory();

// snapshot.cc
bool quiesce(Failure& failure);
bool thaw(uint64_t wall_us, Failure& failure);
bool rest(Failure& failure);
/// After that, or without.
void go_on();
bool renew(const Text& machine_id, const Text& hostname, const Text& random, const Strings& environment,
           Failure& failure);
void set_clock(uint64_t wall_us);
void stir_random(const Text& bytes);

// end.cc
/// Ends all processes, writes the disk out, and turns the machine off.
[[noreturn]] void end_machine();

// calls.cc
/// To the machine's console: why there is no channel to say it through.
void complain(const char* what, const char* of, long result);
long make_directory(const char* path, unsigned mode);
long mount_at(const char* source, const char* target, const char* type, unsigned long flags, const char* options);
void sleep_ms(unsigned milliseconds);
/// Reads a small file whole, with a NUL behind it. False when it cannot be read.
bool read_small(int directory, const char* path, Buffer& out);
bool same_text(const char* left, const char* right);
bool begins_with(const char* text, const char* prefix);

}  // namespace dsec::guest
