// What reading and writing HDF5 share: owned handles and errors as text.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace monoref {

/// Owns an identifier of the HDF5 library.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close how) : id_(id), close_(how) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (valid()) close_(id_);
  }

  bool valid() const { return id_ >= 0; }
  hid_t get() const { return id_; }
  /// Closes now, for callers that must know whether that succeeds.
  herr_t close() { return close_(std::exchange(id_, H5I_INVALID_HID)); }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Keeps the library from printing its error stack while this lives.
class QuietHdf5 {
 public:
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// The innermost description on the library's error stack: why the last call failed.
std::string hdf5_error_text();

}  // namespace monoref
