// The Python module tensorflow.python._pywrap_tensorflow_internal: matrices come in as buffers of float32 and go out
// as bytes, everything else is done in Python.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_registry.h"

namespace tensorflow {
namespace {

// One input is a tuple (buffer, rows, columns).
Tensor TensorFromPython(PyObject* item) {
  Py_buffer view;
  Py_ssize_t rows = 0;
  Py_ssize_t cols = 0;
  if (!PyArg_ParseTuple(item, "y*nn", &view, &rows, &cols)) throw std::invalid_argument("");
  Tensor tensor = Tensor::Zeros(rows, cols);
  const size_t bytes = tensor.size() * sizeof(float);
  const bool fits = static_cast<size_t>(view.len) == bytes;
  if (fits && bytes > 0) std::memcpy(tensor.values.data(), view.buf, bytes);
  PyBuffer_Release(&view);
  if (!fits) throw std::invalid_argument("a buffer does not have the size of its shape " + tensor.ShapeText());
  return tensor;
}

DeviceWish WishFromText(const std::string& text) {
  if (text == "CPU") return DeviceWish::kCpu;
  if (text == "GPU") return DeviceWish::kGpu;
  return DeviceWish::kAny;
}

PyObject* PyRunOp(PyObject*, PyObject* args) {
  const char* op = nullptr;
  PyObject* items = nullptr;
  const char* device = nullptr;
  if (!PyArg_ParseTuple(args, "sO!s", &op, &PyTuple_Type, &items, &device)) return nullptr;
  try {
    std::vector<Tensor> inputs;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) {
      inputs.push_back(TensorFromPython(PyTuple_GET_ITEM(items, i)));
    }
    const Result result = RunOp(op, inputs, WishFromText(device));
    const Tensor& tensor = result.tensor;
    return Py_BuildValue("y#nns", reinterpret_cast<const char*>(tensor.values.data()),
                         static_cast<Py_ssize_t>(tensor.size() * sizeof(float)), static_cast<Py_ssize_t>(tensor.rows),
                         static_cast<Py_ssize_t>(tensor.cols), DeviceName(result.device).c_str());
  } catch (const std::invalid_argument& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* PyOpNames(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  if (names == nullptr) return nullptr;
  for (const std::string& name : OpRegistry::Global().OpNames()) {
    PyObject* text = PyUnicode_FromString(name.c_str());
    if (text == nullptr || PyList_Append(names, text) != 0) {
      Py_XDECREF(text);
      Py_DECREF(names);
      return nullptr;
    }
    Py_DECREF(text);
  }
  return names;
}

PyObject* PyGpuCount(PyObject*, PyObject*) { return PyLong_FromLong(GpuCount()); }

PyObject* PyHasFeature(PyObject*, PyObject* args) {
  const char* name = nullptr;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  return PyBool_FromLong(HasFeature(name));
}

PyMethodDef methods[] = {
    {"run_op", PyRunOp, METH_VARARGS, "run_op(name, ((buffer, rows, cols), ...), device) -> (bytes, rows, cols, device)"},
    {"op_names", PyOpNames, METH_NOARGS, "The names of all registered ops, sorted."},
    {"gpu_count", PyGpuCount, METH_NOARGS, "How many GPUs the driver reports."},
    {"has_feature", PyHasFeature, METH_VARARGS, "Whether an optional part was built in."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_pywrap_tensorflow_internal", "The C++ core of the miniature.", -1, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace tensorflow

PyMODINIT_FUNC PyInit__pywrap_tensorflow_internal() {
  PyObject* created = PyModule_Create(&tensorflow::module);
  if (created != nullptr) {
    PyModule_AddStringConstant(created, "VERSION", TF_VERSION_STRING);
    PyModule_AddStringConstant(created, "COMPILER_VERSION", __VERSION__);
  }
  return created;
}
