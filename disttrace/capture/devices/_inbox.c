/* What was issued on a device, noted in the thread that issues: matching.py's PlainInbox, which is the
   reference, in a third of a microsecond.

   Only documented C API is used. All of this runs under the GIL, and between two calls into Python
   no other thread comes, so there is no lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <structmember.h>
#include <stdint.h>
#include <time.h>

enum { READINGS = 4, CLOSE = 300 }; /* ns between two clocks; more is a processor that was lost */

typedef struct {
    PyObject_HEAD
    PyObject *notes;     /* a list of (operation, thread, offset, error, id of its hooks) */
    PyObject *known;     /* by group's number: where a hook leaves ids of operations, or None; or what
                            is done with all of that group, where nobody can be asked */
    PyObject *rarely;    /* what is done with anything else */
    PyObject *wake;      /* there is something */
    PyObject *capturing; /* says whether a graph is being captured here, or None */
} Inbox;

static PyObject *ended, *call, *group; /* names */

static int64_t now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Unix time less the clock of begins: the narrowest of some readings. */
static void read_offset(int64_t *offset, int64_t *error) {
    *error = INT64_MAX;
    for (int reading = 0; reading < READINGS && *error > CLOSE; reading++) {
        const int64_t before = now(CLOCK_MONOTONIC), unix_ns = now(CLOCK_REALTIME);
        const int64_t after = now(CLOCK_MONOTONIC);
        if (after - before >= *error) continue;
        *error = after - before;
        *offset = unix_ns - (before + (after - before) / 2);
    }
}

/* 1: noted; 0: a case for Python; -1: an exception. */
static int note(Inbox *self, PyObject *operation) {
    if (PyDict_GET_SIZE(self->known) == 0) return 0;
    PyObject *value = PyObject_GetAttr(operation, call);
    if (value == NULL) return -1;
    PyObject *number = PyObject_GetAttr(value, group);
    Py_DECREF(value);
    if (number == NULL) return -1;
    PyObject *ids = PyDict_GetItemWithError(self->known, number); /* borrowed */
    Py_DECREF(number);
    if (ids == NULL) return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(ids);
    int is_so = 0;
    if (self->capturing != NULL && self->capturing != Py_None) {
        PyObject *said = PyObject_CallNoArgs(self->capturing);
        is_so = said == NULL ? -1 : PyObject_IsTrue(said);
        Py_XDECREF(said);
        if (is_so < 0 && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            PyErr_Clear(); /* as of a device that has failed: Python sees to it */
            is_so = 1;
        }
    }
    if (is_so != 0) {
        Py_DECREF(ids);
        return is_so < 0 ? -1 : 0;
    }
    if (PyCallable_Check(ids)) {
        value = PyObject_CallOneArg(ids, operation);
        Py_DECREF(ids);
        Py_XDECREF(value);
        return value == NULL ? -1 : 1;
    }
    value = PyObject_GetAttr(operation, ended);
    is_so = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    PyObject *thread = is_so != 0 ? NULL : PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (thread == NULL) {
        Py_DECREF(ids);
        return is_so > 0 ? 1 : -1;
    }
    PyObject *id = Py_None;
    if (PyDict_Check(ids)) {
        id = PyDict_GetItemWithError(ids, thread);
        if (id == NULL) id = Py_None;
    }
    int64_t offset = 0, error = 0;
    read_offset(&offset, &error);
    PyObject *noted = Py_BuildValue("(OOLLO)", operation, thread, offset, error, id);
    Py_DECREF(thread);
    Py_DECREF(ids);
    if (noted == NULL) return -1;
    /* Part of no cycle: ten thousand of them, grown old, would have the collector look at all that
       the program has, and hold the GIL meanwhile. */
    PyObject_GC_UnTrack(noted);
    const int first = PyList_GET_SIZE(self->notes) == 0;
    const int failed = PyList_Append(self->notes, noted);
    Py_DECREF(noted);
    if (failed) return -1;
    if (first) {
        value = PyObject_CallNoArgs(self->wake);
        if (value == NULL) return -1;
        Py_DECREF(value);
    }
    return 1;
}

static PyObject *add(Inbox *self, PyObject *const *args, Py_ssize_t count) {
    if (count == 3 && args[1] == Py_None) {
        const int done = note(self, args[0]);
        if (done < 0) return NULL;
        if (done) Py_RETURN_NONE;
    }
    return PyObject_Vectorcall(self->rarely, args, (size_t)count, NULL);
}

static PyObject *take(Inbox *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *notes = self->notes, *fresh = PyList_New(0);
    if (fresh == NULL) return NULL;
    self->notes = fresh;
    return notes;
}

static PyObject *inbox_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *rarely, *wake;
    static char *names[] = {"rarely", "wake", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &rarely, &wake)) return NULL;
    Inbox *self = (Inbox *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->notes = PyList_New(0);
    self->known = PyDict_New();
    Py_INCREF(rarely);
    self->rarely = rarely;
    Py_INCREF(wake);
    self->wake = wake;
    if (self->notes == NULL || self->known == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static int inbox_traverse(Inbox *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->notes);
    Py_VISIT(self->known);
    Py_VISIT(self->rarely);
    Py_VISIT(self->wake);
    Py_VISIT(self->capturing);
    return 0;
}

static int inbox_clear(Inbox *self) {
    Py_CLEAR(self->notes);
    Py_CLEAR(self->known);
    Py_CLEAR(self->rarely);
    Py_CLEAR(self->wake);
    Py_CLEAR(self->capturing);
    return 0;
}

static void inbox_dealloc(Inbox *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    inbox_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"known", T_OBJECT, offsetof(Inbox, known), READONLY, NULL},
    {"notes", T_OBJECT, offsetof(Inbox, notes), READONLY, NULL},
    {"capturing", T_OBJECT, offsetof(Inbox, capturing), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, "Note what was issued."},
    {"take", (PyCFunction)take, METH_NOARGS, "What was noted since the last time."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots_of_type[] = {
    {Py_tp_new, inbox_new},       {Py_tp_traverse, inbox_traverse}, {Py_tp_clear, inbox_clear},
    {Py_tp_dealloc, inbox_dealloc}, {Py_tp_members, members},       {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "disttrace.capture.devices._inbox.Inbox",
    .basicsize = sizeof(Inbox),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots_of_type,
};

static int module_exec(PyObject *self) {
    ended = PyUnicode_InternFromString("ended");
    call = PyUnicode_InternFromString("call");
    group = PyUnicode_InternFromString("group");
    if (ended == NULL || call == NULL || group == NULL) return -1;
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    const int failed = PyModule_AddObjectRef(self, "Inbox", type);
    Py_DECREF(type);
    /* Defined by who compiles: the checksum of this file, see journal/compiled.py. */
    return failed ? -1 : PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.capture.devices._inbox",
    .m_doc = "What was issued on a device; see matching.py.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__inbox(void) { return PyModuleDef_Init(&module); }
