#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace dsec::engine {

/// The writable disks of virtual machines. A disk is a directory: immutable layers, and on top of them one that takes
/// what the machine writes (man dsec-disk). A process of its own serves it at a socket. Stateless: any process of the
/// home may call, one at a time for each disk. All throw Error.
class MachineDisks {
 public:
  virtual ~MachineDisks() = default;

  /// Makes a layer of an image of a disk; what is zero takes no room. `layer` must not exist.
  virtual void pack(const std::filesystem::path& image, const std::filesystem::path& layer) = 0;

  /// What a new disk stands on, each bottom first.
  struct New {
    /// Open files of layers that lie elsewhere, below all others. Whoever serves the disk gives them again.
    std::vector<int> below;
    /// Layers in the disk's filesystem: it gets them by another name (a hard link), so that whoever had them may remove
    /// them, and any number of disks share them.
    std::vector<std::filesystem::path> layers;
    std::uint64_t size = 0;  ///< bytes, whole sectors of 512; 0: that of the layers
  };
  /// Makes the directory `disk`, or nothing.
  virtual void create(const std::filesystem::path& disk, const New& wanted) = 0;

  struct Service {
    std::filesystem::path socket;  ///< where NBD is spoken; made, and replaced when it is there
    /// Of the control groups that the process shall live in: cgroup.procs of v2, `tasks` of v1.
    std::vector<int> groups = {};
    std::vector<int> below = {};  ///< as in New
  };
  /// Starts what serves the disk, unless it runs. It goes on until its group is killed or end() is called; killed
  /// otherwise, it is there again, and the machine goes on where it was.
  virtual void serve(const std::filesystem::path& disk, const Service& service) = 0;
  virtual bool is_served(const std::filesystem::path& disk) = 0;
  /// Ends what serves it, if anything does.
  virtual void end(const std::filesystem::path& disk) = 0;

  /// Makes a directory `snapshot` of what the disk shows now, on its filesystem: layers alone, for create(). The
  /// machine goes on writing. Takes the time of what was not yet flushed. Of a disk that is served, and not frozen with
  /// its machine, or that nobody uses.
  virtual void seal(const std::filesystem::path& disk, const std::filesystem::path& snapshot) = 0;
  /// Those of a disk or snapshot that lie in its directory, bottom first, without the one that is written to.
  virtual std::vector<std::filesystem::path> layers(const std::filesystem::path& disk) = 0;
};

}  // namespace dsec::engine
