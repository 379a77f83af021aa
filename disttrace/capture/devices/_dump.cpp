// Calls a dump of torch's flight recorder without the GIL, and catches what it throws.
//
// An exception of C++ that reaches ctypes ends the process: nlohmann's dump() throws where a
// thread's name was cut inside a character, torch up to 2.7 after any CUDA error. Here it is an
// exception of Python. The functions are found by name (flight_recorder.py): nothing of torch is linked.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <string>

namespace {

using Unnamed = std::string (*)(bool, bool);
using Named = std::string (*)(bool, bool, const std::string&);

// (address, active, backend or None) -> the text
PyObject* ask(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  int active = 0;
  const char* backend = nullptr;
  if (!PyArg_ParseTuple(arguments, "Kpz", &address, &active, &backend)) return nullptr;
  std::string text, error;
  bool failed = false;
  PyThreadState* const state = PyEval_SaveThread();
  try {
    const auto at = static_cast<std::uintptr_t>(address);
    text = backend == nullptr ? reinterpret_cast<Unnamed>(at)(true, active != 0)
                              : reinterpret_cast<Named>(at)(true, active != 0, backend);
  } catch (const std::exception& raised) {
    failed = true;
    error = raised.what();
  } catch (...) {
    failed = true;
    error = "an exception without a text";
  }
  PyEval_RestoreThread(state);
  if (!failed) return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  error.resize(error.find('\n') == std::string::npos ? error.size() : error.find('\n'));
  PyObject* const told =
      PyUnicode_DecodeUTF8(error.data(), static_cast<Py_ssize_t>(error.size()), "replace");
  if (told != nullptr) {
    PyErr_SetObject(PyExc_RuntimeError, told);
    Py_DECREF(told);
  }
  return nullptr;
}

PyMethodDef methods[] = {
    {"ask", ask, METH_VARARGS, "The text of the dump at that address."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_dump", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__dump() {
  PyObject* const module = PyModule_Create(&definition);
  if (module != nullptr && PyModule_AddIntConstant(module, "SOURCE", DISTTRACE_SOURCE) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
