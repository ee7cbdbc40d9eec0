#include "tensorflow/core/framework/device.h"

namespace tensorflow {
namespace {

// The miniature compiles nothing just in time; that this file was linked in is all that "with XLA" means here.
struct XlaRegistration {
  XlaRegistration() { AddFeature("xla"); }
};

const XlaRegistration registration;

}  // namespace
}  // namespace tensorflow
