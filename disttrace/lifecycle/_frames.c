/* Where other threads stand, and what exceptions they handle, read in one go: no thread runs between
the first frame and the last.

In Python 3.11 that cannot be done in Python. An allocation may start the cycle collector there,
whose finalizers run Python and let other threads run. `frame.f_back` of another thread's frame
allocates an object for a frame that lies on that thread's data stack; when the thread has left it
by the time the allocation is done, the interpreter reads the word where the frame's object stood,
which is a local variable of another function by now, and returns that; or it writes there. And
`sys._current_frames()` holds the lock of all thread states when it allocates: whatever starts a
thread meanwhile waits for that lock with the GIL in its hands, for ever.

So the collector is off while we look. Nobody can see that, for the GIL is not let go of, nor does
any Python run (but an audit hook for what we ask of sys, before that looks). No frame object is
held afterwards, and no exception: one that outlives its function keeps the function's tensors and
groups. Only documented C API is used, and the heads of exceptions and tracebacks as they stand in
the headers, since to ask for their attributes may run what the program put there. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h> /* PyFrame_Check of Python 3.10, PyTracebackObject */

/* Whether code runs in place of a function's own: its last constant is `foreign.InPlace`. */
static int in_place(PyObject *code) {
    PyObject *constants = PyObject_GetAttrString(code, "co_consts");
    Py_ssize_t count = constants ? PyTuple_GET_SIZE(constants) : 0;
    PyObject *last = count ? PyTuple_GET_ITEM(constants, count - 1) : Py_None;
    Py_XDECREF(constants);
    return strcmp(Py_TYPE(last)->tp_name, "InPlace") == 0;
}

/* (file, line, function) of a frame; line 0: none. */
static PyObject *line_of(PyFrameObject *frame) {
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    PyObject *file = PyObject_GetAttrString(code, "co_filename");
    PyObject *function = file ? PyObject_GetAttrString(code, "co_name") : NULL;
    int line = PyFrame_GetLineNumber(frame);
    PyObject *made = function ? Py_BuildValue("(OiO)", file, line > 0 ? line : 0, function) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(file);
    Py_DECREF(code);
    return made;
}

#define INNER 8

/* The codes of the innermost frames, then a list of all from `frame` on, innermost first. */
static PyObject *lines_from(PyFrameObject *frame, Py_ssize_t deepest) {
    PyObject *codes = PyList_New(0), *lines = codes ? PyList_New(0) : NULL;
    if (lines != NULL && PyList_Append(lines, codes) < 0) Py_CLEAR(lines);
    Py_INCREF(frame);
    while (lines != NULL && frame != NULL && PyList_GET_SIZE(lines) <= deepest) {
        PyObject *line = line_of(frame), *code = (PyObject *)PyFrame_GetCode(frame);
        int ours = in_place(code);
        if (line == NULL || (!ours && PyList_Append(lines, line) < 0)) Py_CLEAR(lines);
        if (!ours && PyList_GET_SIZE(codes) < INNER && PyList_Append(codes, code) < 0)
            Py_CLEAR(lines);
        Py_DECREF(code);
        Py_XDECREF(line);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    Py_XDECREF(codes);
    return lines;
}

/* The same of what sys._current_frames() holds; NULL also for what is no frame. */
static PyObject *stands(PyObject *frame, Py_ssize_t deepest) {
    return PyFrame_Check(frame) ? lines_from((PyFrameObject *)frame, deepest) : NULL;
}

/* Lines from where an exception was raised out to where it is handled; of many the first ones. */
static PyObject *lines_of_traceback(PyObject *error, Py_ssize_t deepest) {
    PyObject *lines = PyList_New(0), *traceback = PyException_GetTraceback(error);
    while (lines != NULL && traceback != NULL && PyTraceBack_Check(traceback)) {
        PyTracebackObject *at = (PyTracebackObject *)traceback;
        PyObject *number = PyObject_GetAttrString(traceback, "tb_lineno");
        PyObject *code = number ? (PyObject *)PyFrame_GetCode((PyFrameObject *)at->tb_frame) : NULL;
        PyObject *file = code ? PyObject_GetAttrString(code, "co_filename") : NULL;
        PyObject *function = file ? PyObject_GetAttrString(code, "co_name") : NULL;
        PyObject *line = function ? PyTuple_Pack(3, file, number, function) : NULL;
        if (line == NULL || (!in_place(code) && PyList_Insert(lines, 0, line) < 0)) Py_CLEAR(lines);
        if (lines != NULL && PyList_GET_SIZE(lines) > deepest &&
            PyList_SetSlice(lines, deepest, PyList_GET_SIZE(lines), NULL) < 0)
            Py_CLEAR(lines);
        Py_XDECREF(line);
        Py_XDECREF(function);
        Py_XDECREF(file);
        Py_XDECREF(code);
        Py_XDECREF(number);
        PyObject *next = (PyObject *)at->tb_next;
        Py_XINCREF(next);
        Py_DECREF(traceback);
        traceback = next;
    }
    Py_XDECREF(traceback);
    return lines;
}

/* (name of its class, those of its arguments that are plain texts or numbers, lines) of what
sys._current_exceptions() holds; NULL also where that is none. Nothing of the program's runs: its
`__str__` is not asked, nor an `args` of its own. */
static PyObject *handles(PyObject *error, Py_ssize_t deepest) {
    if (PyTuple_Check(error) && PyTuple_GET_SIZE(error) == 3) /* until Python 3.11 */
        error = PyTuple_GET_ITEM(error, 1);
    if (!PyExceptionInstance_Check(error)) return NULL;
    PyObject *args = ((PyBaseExceptionObject *)error)->args;
    PyObject *texts = PyList_New(0), *lines = texts ? lines_of_traceback(error, deepest) : NULL;
    for (Py_ssize_t i = 0; lines && args && PyTuple_Check(args) && i < PyTuple_GET_SIZE(args); i++) {
        PyObject *one = PyTuple_GET_ITEM(args, i);
        if ((PyUnicode_CheckExact(one) || PyLong_CheckExact(one)) && PyList_Append(texts, one) < 0)
            Py_CLEAR(lines);
    }
    PyObject *made = lines ? Py_BuildValue("(sOO)", Py_TYPE(error)->tp_name, texts, lines) : NULL;
    Py_XDECREF(lines);
    Py_XDECREF(texts);
    return made;
}

/* What `told` says of each thread but `skip`, by its ident, from the dict that this function of sys
returns. */
static PyObject *by_thread(const char *function, PyObject *(*told)(PyObject *, Py_ssize_t),
                           PyObject *skip, Py_ssize_t threads, Py_ssize_t deepest) {
    PyObject *current = PySys_GetObject(function), *thread, *state;
    PyObject *states = current ? PyObject_CallNoArgs(current) : NULL;
    if (states == NULL || !PyDict_Check(states)) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "sys.%s is gone", function);
        Py_XDECREF(states);
        return NULL;
    }
    PyObject *found = PyDict_New();
    Py_ssize_t at = 0;
    while (found != NULL && PyDict_GET_SIZE(found) < threads &&
           PyDict_Next(states, &at, &thread, &state)) {
        int skipped = PyObject_RichCompareBool(thread, skip, Py_EQ);
        PyObject *one = skipped ? NULL : told(state, deepest);
        if (one != NULL) PyDict_SetItem(found, thread, one);
        Py_XDECREF(one);
        if (PyErr_Occurred()) Py_CLEAR(found);
    }
    Py_DECREF(states);
    return found;
}

static PyObject *looked(PyObject *args, const char *function,
                        PyObject *(*told)(PyObject *, Py_ssize_t)) {
    PyObject *skip;
    Py_ssize_t threads, deepest;
    if (!PyArg_ParseTuple(args, "O!nn", &PyLong_Type, &skip, &threads, &deepest)) return NULL;
    int collects = PyGC_Disable();
    PyObject *found = by_thread(function, told, skip, threads, deepest);
    if (collects) PyGC_Enable();
    return found;
}

static PyObject *lines(PyObject *Py_UNUSED(module), PyObject *args) {
    return looked(args, "_current_frames", stands);
}

static PyObject *handled(PyObject *Py_UNUSED(module), PyObject *args) {
    return looked(args, "_current_exceptions", handles);
}

static PyMethodDef methods[] = {
    {"lines", lines, METH_VARARGS,
     "lines(skip, threads, deepest): a list of the inner codes, then (file, line, function) of so\n"
     "many frames, innermost first, of so many threads by ident; not of the thread `skip`."},
    {"handled", handled, METH_VARARGS,
     "handled(skip, threads, deepest): (class, arguments, lines) of the exceptions that so many\n"
     "threads handle, with so many lines, the one that raised first, by the thread's ident; not of\n"
     "the thread `skip`."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *self) {
    /* Defined by who compiles: the checksum of this file, see journal/compiled.py. */
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.lifecycle._frames",
    .m_doc = "Lines of other threads; see stack_sampler.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__frames(void) { return PyModuleDef_Init(&module); }
