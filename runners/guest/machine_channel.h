#pragma once

#include "runners/guest/keeper.h"
#include "runners/protocol/guest_channel.h"

namespace dsec::guest {

namespace channel = dsec::runners::channel;

/// One stream of the machine's channel. Whom its bytes are for decides which of the members are in use.
struct GuestStream {
  /// Connection and Flow (of datagrams) are what the guest's sandbox sends out, see machine_egress.cc.
  enum class Kind : uint32_t { Command, Question, Relay, Connection, Flow };

  GuestStream* next;
  uint32_t number;
  Kind kind;
  uint64_t credit;      ///< bytes that the guest takes
  uint64_t window;      ///< of the guest's bytes
  uint64_t owed;        ///< of these, what was taken and not told it yet
  Buffer out;           ///< waits for credit
  Buffer in;            ///< the beginning of a frame; of a relay, what its socket has no room for
  bool ends, end_told;  ///< nothing comes after `out`; the guest knows
  bool left;            ///< nobody wants it any more: it is there until the guest has closed it
  bool guest_ends;      ///< nothing comes after `in`
  bool closed;          ///< by the guest, with:
  uint32_t error;
  Buffer message;

  Command* command;
  wire::Type question;  ///< what was asked
  Client* client;       ///< who gets the answer; null: gone
  Source socket;        ///< of a relay; -1: closed
  bool detached;        ///< the relay needs no client
  bool hung_up;         ///< the socket has ended both ways, and is watched no more for that

  bool goes_out() const { return kind == Kind::Connection || kind == Kind::Flow; }
};

/// Null when there is no channel, or no number left. `wanted`: what follows the window in Open.
GuestStream* open_guest_stream(GuestStream::Kind kind, const char* wanted, size_t size);
/// One that the guest opens, under its number. Null: it may not.
GuestStream* accept_guest_stream(uint32_t number, GuestStream::Kind kind, uint64_t window);
/// More than its agent ever opens.
bool too_many_guest_streams();
/// So much waits for the guest that nothing is to be added that can wait itself.
bool channel_is_full();
/// A frame of wire.h on a stream to the guest's keeper.
void put_frame(GuestStream& stream, wire::Type type, const void* a, size_t a_size, const void* b = nullptr,
               size_t b_size = 0);
void put(GuestStream& stream, const void* data, size_t size);
/// Nothing more is put into it.
void put_end(GuestStream& stream);
/// Nobody wants it any more. It may not be used afterwards. `error`: why it broke off, which the guest is told.
void leave(GuestStream& stream, uint32_t error = 0);
/// What was taken of it, so that the guest may send more; held back while its reader has enough.
void take(GuestStream& stream, size_t size);
void send_control(channel::Type type, const char* data, size_t size);
/// Quiesces the guest. What is said to it from then on waits for end_silence(), which lets it go on. In
/// machine_channel.cc; the questions for it are asked by ask_quiescence(), in machine.cc. False: not possible now.
void begin_silence();
void end_silence();
bool ask_quiescence(Client& client);
GuestStream* all_streams();
/// The channel is of no use any more, and the machine neither.
void lose_machine(const char* why);

// machine.cc
void on_stream_data(GuestStream& stream, const char* data, size_t size);
/// The guest's last word of a stream, in stream.error and stream.message.
void on_stream_closed(GuestStream& stream);
void on_stream_end(GuestStream& stream);
void on_stream_room(GuestStream& stream);
void on_control_frame(channel::Type type, const char* data, size_t size);

// machine_egress.cc
/// The guest opens a stream, whose wish is to be read. False when it may not.
bool accept_egress(uint32_t number, wire::Reader& reader);
void on_egress(GuestStream& stream, uint32_t events);
void on_egress_data(GuestStream& stream, const char* data, size_t size);
void on_egress_end(GuestStream& stream);
void on_egress_closed(GuestStream& stream);
/// What is waited for of its socket.
void update_egress(GuestStream& stream);

}  // namespace dsec::guest
