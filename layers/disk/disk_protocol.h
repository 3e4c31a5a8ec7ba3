#pragma once

/// What dsec and the process that serves a disk say to each other, and what its processes find open. One SOCK_SEQPACKET
/// connection carries requests and answers in turn, one JSON object each; man/dsec-disk.7.md tells of it.
namespace dsec::layers {

inline constexpr char kDiskProgram[] = "dsec-disk";
inline constexpr int kDiskProtocol = 1;

/// Descriptors: dsec starts it with the listening control socket and, from kFirstFd on, the files of the control groups
/// that it joins, then the layers that lie elsewhere. Those of the latter are the others' from kFirstFd on.
enum DiskDescriptor { kControlFd = 3, kNbdFd = 4, kFirstFd = 5 };

}  // namespace dsec::layers
