/* The native core: what core.py's PlainCore and capture/hot_path/wrapper.py do, for every call.

It finds what is called and from where, writes the records of begin, issue, wait and end into the
journal's window, and calls torch's original. Whatever is rare (a call not seen before, an
exception, work of a device, a window that is full) is left to the same Python functions that the plain core
uses. The plain core is the reference: both write the same bytes, and a test compares them.

Only documented C API is used, and nothing of torch: a tensor's shape is an attribute as any other.
All of this runs under the GIL. Between two calls into Python no other thread and no signal handler
can come, which is why there is no lock in this file.

Longer than the other files of this project: its types refer to each other, so it is one object.

Sections: module state, clock, lines, Window, Counter, Call, Thread, Operation, places, table, Core,
keys of calls, Method.  */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030b0000 /* 3.10 has the number, and no function for it */
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif

enum {
    WAITED = 16,     /* as in operation.py */
    SPARE = 64,      /* operations kept for the next ones */
    DEEPEST = 100,   /* frames, as in call_site.py */
    KEY_WORDS = 400, /* what a key may have; longer ones are read in Python each time */
    TABLE = 20000,   /* calls, as in call_table.py */
    CODES = 8192,    /* code objects kept alive for the keys */
    LINE = 512,      /* bytes of a line that need no memory of their own */
};

typedef struct Core Core;
typedef struct Operation Operation;

/* ---- module state ----------------------------------------------------------------------- */

typedef struct {
    PyTypeObject *window, *counter, *call, *thread, *operation, *core, *method;
    /* Names that are looked up in the hot path. */
    PyObject *shape, *dtype, *is_cpu, *device, *n;
} State;

static struct PyModuleDef module;

/* ---- clock ------------------------------------------------------------------------------ */

/* What time.perf_counter_ns reads. */
static int64_t perf_counter(void) {
    struct timespec now;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- lines ------------------------------------------------------------------------------ */

/* A record as journal/format.py gives it, cut at its places: "%d" a number, "%b" bytes. */
typedef struct {
    int count;
    struct {
        char text[12];
        int length;
        char kind; /* 'd', 'b', or 0 after the last text */
    } part[8];
} Template;

static int template_from(Template *made, PyObject *bytes) {
    const char *text = PyBytes_AsString(bytes);
    if (text == NULL) return -1;
    made->count = 0;
    for (;;) {
        const char *place = strchr(text, '%');
        size_t length = place ? (size_t)(place - text) : strlen(text);
        if (made->count == 8 || length > sizeof made->part[0].text) {
            PyErr_SetString(PyExc_ValueError, "this template has too many or too long parts");
            return -1;
        }
        memcpy(made->part[made->count].text, text, length);
        made->part[made->count].length = (int)length;
        made->part[made->count].kind = place ? place[1] : 0;
        made->count++;
        if (place == NULL) return 0;
        text = place + 2;
    }
}

static char *put_number(char *out, int64_t number) {
    char digits[20];
    int count = 0;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    if (number < 0) *out++ = '-';
    do digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (count) *out++ = digits[--count];
    return out;
}

/* The most bytes that a line with these texts can take. */
static Py_ssize_t line_bound(PyObject *const *texts, int count) {
    Py_ssize_t bound = 8 * (12 + 20);
    for (int i = 0; i < count; i++) bound += texts[i] ? PyBytes_GET_SIZE(texts[i]) : 0;
    return bound;
}

/* Write the record; `texts` are bytes objects or NULL. Returns its length. */
static Py_ssize_t line_from(const Template *template, char *line, const int64_t *numbers,
                            PyObject *const *texts) {
    char *out = line;
    for (int i = 0; i < template->count; i++) {
        memcpy(out, template->part[i].text, template->part[i].length);
        out += template->part[i].length;
        if (template->part[i].kind == 'd')
            out = put_number(out, *numbers++);
        else if (template->part[i].kind == 'b') {
            PyObject *text = *texts++;
            if (text != NULL) {
                memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text));
                out += PyBytes_GET_SIZE(text);
            }
        }
    }
    return out - line;
}

/* ---- Window: the reserved part of a segment that lines are copied into -------------------- */

typedef struct {
    PyObject_HEAD
    Py_buffer buffer; /* keeps the mapping mapped */
    Py_ssize_t position, end;
} Window;

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"mapping", "position", NULL};
    Py_buffer buffer;
    Py_ssize_t position;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*n", names, &buffer, &position)) return NULL;
    if (position < 0 || position > buffer.len) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the position lies outside of the mapping");
        return NULL;
    }
    Window *self = (Window *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    self->buffer = buffer;
    self->position = position;
    self->end = buffer.len;
    return (PyObject *)self;
}

/* Whether there was room. */
static int window_put(Window *self, const char *line, Py_ssize_t length) {
    if (length > self->end - self->position) return 0;
    memcpy((char *)self->buffer.buf + self->position, line, length);
    self->position += length;
    return 1;
}

static PyObject *window_put_method(PyObject *self, PyObject *line) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(line, &text, &length) < 0) return NULL;
    if (!window_put((Window *)self, text, length)) {
        PyErr_SetString(PyExc_ValueError, "the window is full");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *window_tell(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromSsize_t(((Window *)self)->position);
}

static PyObject *window_seal(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Window *self = (Window *)op;
    self->end = self->position;
    return PyLong_FromSsize_t(self->position);
}

static PyObject *window_close(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Window *self = (Window *)op;
    self->end = self->position; /* nothing is put where the mapping was */
    PyBuffer_Release(&self->buffer);
    Py_RETURN_NONE;
}

static void window_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyBuffer_Release(&((Window *)op)->buffer);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef window_methods[] = {
    {"put", window_put_method, METH_O, "Append one line. Raises ValueError where it has no room."},
    {"tell", window_tell, METH_NOARGS, "Where the next line goes."},
    {"seal", window_seal, METH_NOARGS, "Let no further line in; where the content ends."},
    {"close", window_close, METH_NOARGS, "Let go of the mapping."},
    {NULL},
};

static PyType_Slot window_slots[] = {
    {Py_tp_new, window_new},
    {Py_tp_dealloc, window_dealloc},
    {Py_tp_methods, window_methods},
    {0, NULL},
};

static PyType_Spec window_spec = {"disttrace.recording._fast.Window", sizeof(Window), 0,
                                  Py_TPFLAGS_DEFAULT, window_slots};

/* ---- Counter ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    int64_t last;
} Counter;

static PyObject *counter_next(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(++((Counter *)self)->last);
}

static PyObject *counter_give_back(PyObject *self, PyObject *number) {
    int64_t value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (((Counter *)self)->last == value) ((Counter *)self)->last = value - 1;
    Py_RETURN_NONE;
}

static void plain_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef counter_methods[] = {
    {"next", counter_next, METH_NOARGS, "1, 2, 3, ..."},
    {"give_back", counter_give_back, METH_O, "The number was taken for nothing."},
    {NULL},
};

static PyType_Slot counter_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, plain_dealloc},
    {Py_tp_methods, counter_methods},
    {0, NULL},
};

static PyType_Spec counter_spec = {"disttrace.recording._fast.Counter", sizeof(Counter), 0,
                                   Py_TPFLAGS_DEFAULT, counter_slots};

/* ---- Call --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int64_t n;
    Counter *counter; /* or NULL */
    PyObject *op, *group, *tag;
    char synchronous, device_ends, whole;
} Call;

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"n", "op", "synchronous", "counter", NULL};
    long long n;
    int synchronous;
    PyObject *op, *counter;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LOpO", names, &n, &op, &synchronous, &counter))
        return NULL;
    State *state = PyType_GetModuleState(type);
    if (counter != Py_None && !Py_IS_TYPE(counter, state->counter)) {
        PyErr_SetString(PyExc_TypeError, "counter must be a Counter of this core");
        return NULL;
    }
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->n = n;
    self->op = Py_NewRef(op);
    self->synchronous = (char)synchronous;
    self->whole = 1;
    if (counter != Py_None) self->counter = (Counter *)Py_NewRef(counter);
    return (PyObject *)self;
}

static void call_dealloc(PyObject *op) {
    Call *self = (Call *)op;
    Py_CLEAR(self->counter);
    Py_CLEAR(self->op);
    Py_CLEAR(self->group);
    Py_CLEAR(self->tag);
    plain_dealloc(op);
}

static PyMemberDef call_members[] = {
    {"n", T_LONGLONG, offsetof(Call, n), READONLY, NULL},
    {"op", T_OBJECT, offsetof(Call, op), READONLY, NULL},
    {"counter", T_OBJECT, offsetof(Call, counter), READONLY, NULL},
    {"synchronous", T_BOOL, offsetof(Call, synchronous), READONLY, NULL},
    {"device_ends", T_BOOL, offsetof(Call, device_ends), 0, NULL},
    {"whole", T_BOOL, offsetof(Call, whole), 0, NULL},
    {"group", T_OBJECT, offsetof(Call, group), 0, NULL},
    {"tag", T_OBJECT, offsetof(Call, tag), 0, NULL},
    {NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_members, call_members},
    {0, NULL},
};

static PyType_Spec call_spec = {"disttrace.recording._fast.Call", sizeof(Call), 0,
                                Py_TPFLAGS_DEFAULT, call_slots};

/* ---- Thread: what the recorder knows of one thread ---------------------------------------- */

typedef struct {
    PyObject_HEAD
    int64_t number;
    PyObject *native, *parents, *batches, *tail;
    char inside; /* in a recorded call: what it calls in turn is part of it */
    int waiting;
    Operation *waited[WAITED]; /* whose own call waits for them, innermost last */
} Thread;

static PyObject *thread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"number", NULL};
    long long number;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L", names, &number)) return NULL;
    Thread *self = (Thread *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->number = number;
    self->native = PyLong_FromUnsignedLong(PyThread_get_thread_native_id());
    self->parents = PyList_New(0);
    self->tail = number ? PyBytes_FromFormat(",\"h\":%ld", (long)number) : PyBytes_FromString("");
    if (self->native == NULL || self->parents == NULL || self->tail == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void thread_dealloc(PyObject *op) {
    Thread *self = (Thread *)op;
    while (self->waiting) Py_DECREF((PyObject *)self->waited[--self->waiting]);
    Py_CLEAR(self->native);
    Py_CLEAR(self->parents);
    Py_CLEAR(self->batches);
    Py_CLEAR(self->tail);
    plain_dealloc(op);
}

static int thread_set_tail(PyObject *op, PyObject *value, void *Py_UNUSED(closure)) {
    if (value == NULL || !PyBytes_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "tail must be bytes");
        return -1;
    }
    Py_SETREF(((Thread *)op)->tail, Py_NewRef(value));
    return 0;
}

static PyObject *thread_get_tail(PyObject *op, void *Py_UNUSED(closure)) {
    return Py_NewRef(((Thread *)op)->tail);
}

static PyMemberDef thread_members[] = {
    {"number", T_LONGLONG, offsetof(Thread, number), READONLY, NULL},
    {"native", T_OBJECT, offsetof(Thread, native), READONLY, NULL},
    {"inside", T_BOOL, offsetof(Thread, inside), 0, NULL},
    {"parents", T_OBJECT, offsetof(Thread, parents), READONLY, NULL},
    {"batches", T_OBJECT, offsetof(Thread, batches), 0, NULL},
    {NULL},
};

static PyGetSetDef thread_getset[] = {
    {"tail", thread_get_tail, thread_set_tail, "What its operations' begin records share.", NULL},
    {NULL},
};

static PyType_Slot thread_slots[] = {
    {Py_tp_new, thread_new},
    {Py_tp_dealloc, thread_dealloc},
    {Py_tp_members, thread_members},
    {Py_tp_getset, thread_getset},
    {0, NULL},
};

static PyType_Spec thread_spec = {"disttrace.recording._fast.ThreadState", sizeof(Thread), 0,
                                  Py_TPFLAGS_DEFAULT, thread_slots};

/* ---- Core's fields ------------------------------------------------------------------------ */

typedef struct {
    uint64_t hash;
    uint64_t *words; /* NULL: nothing here */
    int count;
    Call *call;
} Row;

typedef struct {
    PyObject *code; /* NULL: nothing here */
    char user;      /* neither torch's nor ours */
} Code;

struct Core {
    PyObject_HEAD
    State *state;
    char off; /* everything passes */
    int64_t t0, last_number;
    Template begin, begin_uncounted, issued, wait, end, end_synchronous;
    PyObject *recover, *register_thread, *put, *clock, *ambient, *wake, *dropped;
    PyObject *works, *open; /* operations by id() of their Work: all, and those not seen complete */
    Window *window;         /* what `put` puts into, where that is a window of ours */
    Operation *oldest, *newest; /* in flight; each holds a reference */
    Operation *spare[SPARE];
    int spares;
    /* The thread that came last; the others are in their thread states' dictionaries. */
    uint64_t thread_id;
    Thread *thread; /* borrowed from that dictionary */
    PyObject *thread_key;
    /* Places. */
    int depth;
    PyObject *is_user;
    Code *codes;
    int code_count;
    uint64_t generation; /* changes when code objects are let go of */
    /* Calls by key. */
    Row *rows;
    Py_ssize_t row_count, row_room;
    /* How arguments are read. */
    PyTypeObject *tensor;
    PyObject *fields; /* {type: names of the attributes that tell calls apart} */
    PyObject *hashed; /* {type: anything}: their hashes tell them apart */
};

static int64_t now(Core *core) {
    if (core->clock == NULL) return perf_counter();
    PyObject *told = PyObject_CallNoArgs(core->clock); /* a test's */
    int64_t value = told ? PyLong_AsLongLong(told) : 0;
    Py_XDECREF(told);
    PyErr_Clear();
    return value;
}

/* The exception that is set, taken over and with its traceback attached. */
static PyObject *take_error(void) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

/* Set it again, as it was. */
static void set_error(PyObject *error) {
    PyObject *traceback = PyException_GetTraceback(error);
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, traceback);
}

/* Put a line that is complete. -1 with an exception only where `recover` raises one. */
static int put_line(Core *core, const char *line, Py_ssize_t length) {
    if (core->window != NULL && window_put(core->window, line, length)) return 0;
    if (core->put == NULL) /* the collector took the core apart */
        return 0;
    PyObject *bytes = PyBytes_FromStringAndSize(line, length);
    if (bytes == NULL) return -1;
    PyObject *put = Py_NewRef(core->put);
    PyObject *done = PyObject_CallOneArg(put, bytes);
    Py_DECREF(put);
    if (done == NULL &&
        (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_OSError))) {
        PyObject *error = take_error();
        done = PyObject_CallFunctionObjArgs(core->recover, error, bytes, NULL);
        Py_DECREF(error);
    }
    Py_DECREF(bytes);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int put_record(Core *core, const Template *template, const int64_t *numbers,
                      PyObject *const *texts, int count) {
    char space[LINE], *line = space;
    Py_ssize_t bound = line_bound(texts, count);
    if (bound > LINE && (line = PyMem_Malloc(bound)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t length = line_from(template, line, numbers, texts);
    int done = put_line(core, line, length);
    if (line != space) PyMem_Free(line);
    return done;
}

/* ---- Operation ---------------------------------------------------------------------------- */

struct Operation {
    PyObject_HEAD
    Core *core;
    Call *call;
    int64_t n, begin, seq, issued, seen;
    PyObject *tail, *extra;   /* bytes that its begin record has besides; extra may be NULL */
    Operation *older, *newer; /* in flight */
    uintptr_t work;           /* address of its Work, while somebody holds that */
    PyObject *reference;      /* weak, to that Work, while its end is expected from there */
    PyObject *more, *tensors; /* as in operation.py; NULL: none */
    char asked, ended, held;  /* held: we hold its Work, until it is seen complete */
};

static Operation *operation_new(Core *core, Call *call, PyObject *tail, PyObject *extra) {
    Operation *self;
    if (core->spares)
        self = (Operation *)PyObject_Init((PyObject *)core->spare[--core->spares],
                                          core->state->operation);
    else
        self = PyObject_New(Operation, core->state->operation);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->core = (Core *)Py_NewRef(core);
    self->call = (Call *)Py_NewRef(call);
    self->tail = Py_NewRef(tail);
    self->extra = Py_XNewRef(extra);
    return self;
}

static void operation_dealloc(PyObject *op) {
    Operation *self = (Operation *)op;
    PyTypeObject *type = Py_TYPE(op);
    Core *core = self->core;
    Py_CLEAR(self->reference);
    Py_CLEAR(self->more);
    Py_CLEAR(self->tensors);
    Py_CLEAR(self->call);
    Py_CLEAR(self->tail);
    Py_CLEAR(self->extra);
    if (core->spares < SPARE)
        core->spare[core->spares++] = self;
    else
        PyObject_Free(self);
    Py_DECREF(type);
    Py_DECREF(core);
}

/* From here on new segments do not repeat its begin. */
static void operation_over(Operation *self) {
    Core *core = self->core;
    if (self->ended) return;
    self->ended = 1;
    if (self->older != NULL)
        self->older->newer = self->newer;
    else if (core->oldest == self)
        core->oldest = self->newer;
    if (self->newer != NULL)
        self->newer->older = self->older;
    else if (core->newest == self)
        core->newest = self->older;
    self->older = self->newer = NULL;
    Py_DECREF(self);
}

static const Template *begin_template(Operation *self) {
    return self->call->counter ? &self->core->begin : &self->core->begin_uncounted;
}

static void begin_fields(Operation *self, int64_t numbers[4], PyObject *texts[2]) {
    numbers[0] = self->n;
    numbers[1] = self->begin - self->core->t0;
    numbers[2] = self->call->n;
    numbers[3] = self->seq;
    texts[0] = self->tail;
    texts[1] = self->extra;
}

/* Called as the callback of `reference`: nobody holds its Work any more. */
static PyObject *operation_call(PyObject *op, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    Operation *self = (Operation *)op;
    if (PyTuple_GET_SIZE(args) != 1 || PyTuple_GET_ITEM(args, 0) != self->reference ||
        self->core->dropped == NULL)
        Py_RETURN_NONE;
    return PyObject_CallOneArg(self->core->dropped, op);
}

static PyObject *operation_get(PyObject *op, void *offset) {
    PyObject *value = *(PyObject **)((char *)op + (size_t)offset);
    return value ? Py_NewRef(value) : PyTuple_New(0);
}

static int operation_set(PyObject *op, PyObject *value, void *offset) {
    PyObject **place = (PyObject **)((char *)op + (size_t)offset);
    Py_XSETREF(*place, Py_XNewRef(value));
    return 0;
}

static PyMemberDef operation_members[] = {
    {"n", T_LONGLONG, offsetof(Operation, n), READONLY, NULL},
    {"begin", T_LONGLONG, offsetof(Operation, begin), READONLY, NULL},
    {"seq", T_LONGLONG, offsetof(Operation, seq), READONLY, NULL},
    {"call", T_OBJECT, offsetof(Operation, call), READONLY, NULL},
    {"issued", T_LONGLONG, offsetof(Operation, issued), 0, NULL},
    {"seen", T_LONGLONG, offsetof(Operation, seen), 0, NULL},
    {"work", T_ULONGLONG, offsetof(Operation, work), 0, NULL},
    {"reference", T_OBJECT, offsetof(Operation, reference), READONLY, NULL},
    {"asked", T_BOOL, offsetof(Operation, asked), 0, NULL},
    {"ended", T_BOOL, offsetof(Operation, ended), READONLY, NULL},
    {"held", T_BOOL, offsetof(Operation, held), 0, NULL},
    {NULL},
};

static PyGetSetDef operation_getset[] = {
    {"more", operation_get, operation_set, NULL, (void *)offsetof(Operation, more)},
    {"tensors", operation_get, operation_set, NULL, (void *)offsetof(Operation, tensors)},
    {NULL},
};

static PyType_Slot operation_slots[] = {
    {Py_tp_dealloc, operation_dealloc},
    {Py_tp_call, operation_call},
    {Py_tp_members, operation_members},
    {Py_tp_getset, operation_getset},
    {0, NULL},
};

static PyType_Spec operation_spec = {"disttrace.recording._fast.Operation", sizeof(Operation), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                     operation_slots};

/* ---- threads of a core -------------------------------------------------------------------- */

/* The calling thread's state (borrowed), made at its first use. */
static Thread *current_thread(Core *core) {
    uint64_t id = PyThreadState_GetID(PyThreadState_Get());
    if (core->thread_id == id) return core->thread;
    PyObject *all = PyThreadState_GetDict();
    if (all == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has no state of Python's");
        return NULL;
    }
    PyObject *known = PyDict_GetItemWithError(all, core->thread_key);
    if (known == NULL) {
        if (PyErr_Occurred()) return NULL;
        PyObject *number = PyObject_CallNoArgs(core->register_thread);
        PyObject *made =
            number ? PyObject_CallOneArg((PyObject *)core->state->thread, number) : NULL;
        Py_XDECREF(number);
        if (made == NULL) return NULL;
        known = PyDict_GetItemWithError(all, core->thread_key); /* a handler may have come */
        if (known == NULL && PyDict_SetItem(all, core->thread_key, made) == 0)
            known = made; /* the dictionary holds it */
        Py_DECREF(made);
        if (known == NULL) return NULL;
    }
    core->thread = (Thread *)known;
    core->thread_id = id;
    return core->thread;
}

/* The call of `operation` is about to wait for `work` itself. */
static void will_wait(Thread *thread, Operation *operation, PyObject *work) {
    if (thread->waiting == WAITED) { /* a wait that never came: an exception came between */
        Operation *oldest = thread->waited[0];
        memmove(thread->waited, thread->waited + 1, (WAITED - 1) * sizeof *thread->waited);
        thread->waiting--;
        Py_DECREF(oldest);
    }
    operation->work = (uintptr_t)work;
    thread->waited[thread->waiting++] = (Operation *)Py_NewRef(operation);
}

/* Take the operation whose call waits for `work` (a new reference), if there is one. */
static Operation *waits_for(Thread *thread, PyObject *work) {
    for (int i = thread->waiting - 1; i >= 0; i--) {
        Operation *operation = thread->waited[i];
        if (operation->work == (uintptr_t)work) {
            thread->waiting--;
            memmove(thread->waited + i, thread->waited + i + 1,
                    (thread->waiting - i) * sizeof *thread->waited);
            return operation;
        }
    }
    return NULL;
}

/* ---- places: code objects and offsets down to the end of the recorded stack ---------------- */

static uint64_t mixed(uint64_t value) {
    value ^= value >> 32;
    value *= 0x9e3779b97f4a7c15u;
    return value ^ value >> 29;
}

static void forget_codes(Core *core) {
    for (int i = 0; core->codes != NULL && i < 2 * CODES; i++) Py_CLEAR(core->codes[i].code);
    core->code_count = 0;
    core->generation++;
}

/* Whether a frame of this code is the user's; -1 with an exception. Keeps the code alive. */
static int is_user(Core *core, PyObject *code) {
    unsigned mask = 2 * CODES - 1;
    unsigned i = (unsigned)mixed((uintptr_t)code) & mask;
    for (; core->codes[i].code != NULL; i = (i + 1) & mask)
        if (core->codes[i].code == code) return core->codes[i].user;
    PyObject *told = PyObject_CallOneArg(core->is_user, code);
    int user = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    if (user < 0) return -1;
    /* The table may be another by now, for Python ran: look for the place again. */
    for (i = (unsigned)mixed((uintptr_t)code) & mask; core->codes[i].code != NULL;
         i = (i + 1) & mask)
        if (core->codes[i].code == code) return user;
    core->codes[i].code = Py_NewRef(code);
    core->codes[i].user = (char)user;
    core->code_count++;
    return user;
}

typedef struct {
    int count;
    uint64_t words[KEY_WORDS];
} Key;

/* 0 where the key is full. */
static int push(Key *key, uint64_t word) {
    if (key->count == KEY_WORDS) return 0;
    key->words[key->count++] = word;
    return 1;
}

static int push_address(Key *key, const void *address) { return push(key, (uintptr_t)address); }

static int forget_calls(Core *core);

/* Append the place of `frame`. 1: done; 0: it does not fit; -1: an exception. */
static int push_place(Core *core, Key *key, PyFrameObject *frame) {
    if (core->codes == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "places were not set up");
        return -1;
    }
    if (core->code_count >= CODES) { /* keys hold addresses: those made so far go, too */
        forget_calls(core);
        forget_codes(core);
    }
    int done = push(key, core->generation), left = 0;
    Py_XINCREF(frame);
    for (int i = 0; done > 0 && frame != NULL && i < DEEPEST; i++) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        int user = is_user(core, code);
        Py_DECREF(code);
        done =
            user < 0 ? -1 : push_address(key, code) && push(key, (uint64_t)PyFrame_GetLasti(frame));
        if (left)
            left--;
        else if (user > 0)
            left = core->depth > 0 ? core->depth : 1;
        if (left == 1) break;
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return done;
}

/* ---- table: calls by key ------------------------------------------------------------------ */

static uint64_t key_hash(const Key *key) {
    uint64_t hash = (uint64_t)key->count;
    for (int i = 0; i < key->count; i++) hash = mixed(hash ^ key->words[i]) + (hash << 7);
    return hash;
}

static Row *find_row(Core *core, const Key *key, uint64_t hash) {
    Py_ssize_t mask = core->row_room - 1;
    for (Py_ssize_t i = (Py_ssize_t)hash & mask;; i = (i + 1) & mask) {
        Row *row = &core->rows[i];
        if (row->words == NULL) return row;
        if (row->hash == hash && row->count == key->count &&
            memcmp(row->words, key->words, key->count * sizeof *key->words) == 0)
            return row;
    }
}

static Call *find_call(Core *core, const Key *key, uint64_t hash) {
    return core->row_room ? find_row(core, key, hash)->call : NULL;
}

static int forget_calls(Core *core) {
    Row *rows = core->rows;
    Py_ssize_t room = core->row_room;
    core->rows = NULL;
    core->row_count = core->row_room = 0;
    for (Py_ssize_t i = 0; i < room; i++) {
        PyMem_Free(rows[i].words);
        Py_XDECREF((PyObject *)rows[i].call);
    }
    PyMem_Free(rows);
    return 0;
}

/* Remember the call; a table that cannot grow forgets everything, and nothing is lost by it. */
static void remember_call(Core *core, const Key *key, uint64_t hash, Call *call) {
    if (core->row_count >= TABLE) forget_calls(core);
    if (2 * (core->row_count + 1) > core->row_room) {
        Py_ssize_t room = core->row_room ? 2 * core->row_room : 256;
        Row *rows = PyMem_Calloc(room, sizeof *rows);
        if (rows == NULL) return;
        for (Py_ssize_t i = 0; i < core->row_room; i++) {
            Row *row = &core->rows[i];
            if (row->words != NULL) {
                Py_ssize_t j = (Py_ssize_t)row->hash & (room - 1);
                while (rows[j].words != NULL) j = (j + 1) & (room - 1);
                rows[j] = *row;
            }
        }
        PyMem_Free(core->rows);
        core->rows = rows;
        core->row_room = room;
    }
    Row *row = find_row(core, key, hash);
    if (row->words != NULL) return; /* a signal handler made the same call meanwhile */
    uint64_t *words = PyMem_Malloc(key->count * sizeof *words);
    if (words == NULL) return;
    memcpy(words, key->words, key->count * sizeof *words);
    *row = (Row){hash, words, key->count, (Call *)Py_NewRef(call)};
    core->row_count++;
}

/* ---- Core: records ------------------------------------------------------------------------ */

/* Put the begin of one operation on record; `extra` is bytes or NULL. A new reference. */
static Operation *core_begin(Core *core, Thread *thread, Call *call, PyObject *extra) {
    PyObject *joined = Py_XNewRef(extra);
    if (core->ambient != NULL) {
        PyObject *more = PyObject_CallNoArgs(core->ambient);
        if (more == NULL || !PyBytes_Check(more)) {
            Py_XDECREF(more);
            Py_XDECREF(joined);
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "ambient keys must be bytes");
            return NULL;
        }
        if (joined == NULL)
            joined = more;
        else
            PyBytes_ConcatAndDel(&joined, more);
        if (joined == NULL) return NULL;
    }
    Operation *self = operation_new(core, call, thread->tail, joined);
    Py_XDECREF(joined);
    if (self == NULL) return NULL;
    self->n = ++core->last_number;
    if (call->counter != NULL) self->seq = ++call->counter->last;
    self->begin = now(core);
    self->older = core->newest;
    if (core->newest != NULL)
        core->newest->newer = self;
    else
        core->oldest = self;
    core->newest = (Operation *)Py_NewRef(self);
    int64_t numbers[4];
    PyObject *texts[2];
    begin_fields(self, numbers, texts);
    if (put_record(core, begin_template(self), numbers, texts, 2) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static int core_issued(Core *core, Operation *operation) {
    operation->issued = now(core) - operation->begin;
    int64_t numbers[] = {operation->n, operation->issued};
    return put_record(core, &core->issued, numbers, NULL, 0);
}

static int core_wait_begins(Core *core, Operation *operation) {
    int64_t numbers[] = {operation->n, now(core) - operation->begin};
    return put_record(core, &core->wait, numbers, NULL, 0);
}

static int core_end(Core *core, Operation *operation, PyObject *extra) {
    operation_over(operation); /* the caller holds a reference */
    int64_t numbers[] = {operation->n, now(core) - operation->begin};
    return put_record(core, &core->end, numbers, &extra, 1);
}

static int core_end_synchronous(Core *core, Operation *operation) {
    operation_over(operation);
    int64_t numbers[] = {operation->n, now(core) - operation->begin, operation->issued};
    return put_record(core, &core->end_synchronous, numbers, NULL, 0);
}

/* `work` ends the operation. -1 with TypeError where it cannot be referred to weakly. */
static int follow(Core *core, Operation *operation, PyObject *work) {
    PyObject *reference = PyWeakref_NewRef(work, (PyObject *)operation);
    PyObject *key = PyLong_FromVoidPtr(work);
    if (reference == NULL || key == NULL ||
        PyDict_SetItem(core->works, key, (PyObject *)operation) < 0) {
        Py_XDECREF(reference);
        Py_XDECREF(key);
        return -1;
    }
    Py_DECREF(key);
    Py_XSETREF(operation->reference, reference);
    operation->work = (uintptr_t)work;
    return 0;
}

/* The operation that `work` ends (a new reference), if it is not over; NULL without an exception
   where there is none. */
static Operation *followed(Core *core, PyObject *work) {
    if (PyDict_GET_SIZE(core->works) == 0) return NULL;
    PyObject *key = PyLong_FromVoidPtr(work);
    if (key == NULL) return NULL;
    PyObject *found = PyDict_GetItemWithError(core->works, key);
    Py_DECREF(key);
    if (found == NULL || !Py_IS_TYPE(found, core->state->operation)) return NULL;
    Operation *operation = (Operation *)found;
    if (operation->reference == NULL) return NULL;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *refers;
    if (PyWeakref_GetRef(operation->reference, &refers) < 0) return NULL;
    Py_XDECREF(refers); /* only its address is looked at */
#else
    PyObject *refers = PyWeakref_GetObject(operation->reference);
#endif
    return refers == work ? (Operation *)Py_NewRef(operation) : NULL;
}

static int take_out(PyObject *dictionary, PyObject *key, PyObject *value) {
    PyObject *found = PyDict_GetItemWithError(dictionary, key);
    if (found == value) return PyDict_DelItem(dictionary, key);
    return found == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Nothing more is expected of its Work. */
static int unfollow(Core *core, Operation *operation) {
    PyObject *key = PyLong_FromVoidPtr((void *)operation->work);
    if (key == NULL) return -1;
    Py_INCREF(operation);
    Py_CLEAR(operation->reference);
    int done = take_out(core->works, key, (PyObject *)operation);
    if (done == 0) done = take_out(core->open, key, (PyObject *)operation);
    Py_DECREF(key);
    Py_DECREF(operation);
    return done;
}

/* ---- Core: what Python sees ---------------------------------------------------------------- */

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"recover", "register", "put", "templates", NULL};
    PyObject *recover, *register_thread, *put, *t[6];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO(SSSSSS)", names, &recover, &register_thread,
                                     &put, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5]))
        return NULL;
    Core *self = (Core *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->state = PyType_GetModuleState(type);
    self->recover = Py_NewRef(recover);
    self->register_thread = Py_NewRef(register_thread);
    self->put = Py_NewRef(put);
    self->works = PyDict_New();
    self->open = PyDict_New();
    self->thread_key = PyLong_FromVoidPtr(self);
    self->codes = PyMem_Calloc(2 * CODES, sizeof *self->codes);
    Template *all[] = {&self->begin, &self->begin_uncounted, &self->issued, &self->wait,
                       &self->end,   &self->end_synchronous};
    int failed = !self->works || !self->open || !self->thread_key || !self->codes;
    if (self->codes == NULL) PyErr_NoMemory();
    for (int i = 0; i < 6 && !failed; i++) failed = template_from(all[i], t[i]) < 0;
    if (failed) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Objects that Python sets; NULL is None. */
#define HELD(core)                                                                                 \
    PyObject **const held[] = {&(core)->recover,   &(core)->register_thread, &(core)->put,         \
                               &(core)->clock,     &(core)->ambient,         &(core)->wake,        \
                               &(core)->dropped,   &(core)->works,           &(core)->open,        \
                               &(core)->is_user,   &(core)->fields,          &(core)->hashed,      \
                               &(core)->thread_key}

static int core_traverse(PyObject *op, visitproc visit, void *arg) {
    Core *self = (Core *)op;
    HELD(self);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_VISIT(*held[i]);
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void let_go_of_operations(Core *self) {
    Py_INCREF(self);
    while (self->oldest != NULL) operation_over(self->oldest);
    Py_DECREF(self);
}

static int core_clear(PyObject *op) {
    Core *self = (Core *)op;
    self->off = 1;
    self->thread_id = 0;
    HELD(self);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_CLEAR(*held[i]);
    Py_CLEAR(self->window);
    Py_CLEAR(self->tensor);
    forget_calls(self);
    forget_codes(self);
    return 0;
}

static void core_dealloc(PyObject *op) {
    Core *self = (Core *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    core_clear(op);
    PyMem_Free(self->codes);
    while (self->spares) PyObject_Free(self->spare[--self->spares]);
    type->tp_free(op);
    Py_DECREF(type);
}

static int core_is_operation(Core *self, PyObject *value) {
    if (Py_IS_TYPE(value, self->state->operation)) return 1;
    PyErr_SetString(PyExc_TypeError, "not an operation of this core");
    return 0;
}

static PyObject *nothing_unless(int failed) {
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_begin_method(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *thread, *call, *extra = NULL;
    if (!PyArg_ParseTuple(args, "O!O!|S", self->state->thread, &thread, self->state->call, &call,
                          &extra))
        return NULL;
    if (extra != NULL && PyBytes_GET_SIZE(extra) == 0) extra = NULL;
    return (PyObject *)core_begin(self, (Thread *)thread, (Call *)call, extra);
}

static PyObject *core_issued_method(PyObject *op, PyObject *operation) {
    return core_is_operation((Core *)op, operation)
               ? nothing_unless(core_issued((Core *)op, (Operation *)operation))
               : NULL;
}

static PyObject *core_wait_begins_method(PyObject *op, PyObject *operation) {
    return core_is_operation((Core *)op, operation)
               ? nothing_unless(core_wait_begins((Core *)op, (Operation *)operation))
               : NULL;
}

static PyObject *core_end_method(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *operation, *extra = NULL;
    if (!PyArg_ParseTuple(args, "O!|S", self->state->operation, &operation, &extra)) return NULL;
    return nothing_unless(core_end(self, (Operation *)operation, extra));
}

static PyObject *core_end_synchronous_method(PyObject *op, PyObject *operation) {
    return core_is_operation((Core *)op, operation)
               ? nothing_unless(core_end_synchronous((Core *)op, (Operation *)operation))
               : NULL;
}

static PyObject *core_over_method(PyObject *op, PyObject *operation) {
    if (!core_is_operation((Core *)op, operation)) return NULL;
    operation_over((Operation *)operation);
    Py_RETURN_NONE;
}

static PyObject *core_record_method(PyObject *op, PyObject *line) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(line, &text, &length) < 0) return NULL;
    return nothing_unless(put_line((Core *)op, text, length));
}

static PyObject *core_begins_in_flight(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Core *self = (Core *)op;
    PyObject *lines = PyList_New(0);
    for (Operation *each = self->oldest; lines != NULL && each != NULL; each = each->newer) {
        int64_t numbers[4];
        PyObject *texts[2];
        begin_fields(each, numbers, texts);
        PyObject *line = PyBytes_FromStringAndSize(NULL, line_bound(texts, 2));
        if (line != NULL) {
            Py_ssize_t length =
                line_from(begin_template(each), PyBytes_AS_STRING(line), numbers, texts);
            _PyBytes_Resize(&line, length);
        }
        if (line == NULL || PyList_Append(lines, line) < 0) Py_CLEAR(lines);
        Py_XDECREF(line);
    }
    return lines;
}

static PyObject *core_will_wait(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *thread, *operation, *work;
    if (!PyArg_ParseTuple(args, "O!O!O", self->state->thread, &thread, self->state->operation,
                          &operation, &work))
        return NULL;
    will_wait((Thread *)thread, (Operation *)operation, work);
    Py_RETURN_NONE;
}

static PyObject *core_waits_for(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *thread, *work;
    if (!PyArg_ParseTuple(args, "O!O", self->state->thread, &thread, &work)) return NULL;
    PyObject *found = (PyObject *)waits_for((Thread *)thread, work);
    return found ? found : Py_NewRef(Py_None);
}

static PyObject *core_follow(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *operation, *work;
    if (!PyArg_ParseTuple(args, "O!O", self->state->operation, &operation, &work)) return NULL;
    return nothing_unless(follow(self, (Operation *)operation, work));
}

static PyObject *core_followed(PyObject *op, PyObject *work) {
    PyObject *found = (PyObject *)followed((Core *)op, work);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

static PyObject *core_unfollow(PyObject *op, PyObject *operation) {
    return core_is_operation((Core *)op, operation)
               ? nothing_unless(unfollow((Core *)op, (Operation *)operation))
               : NULL;
}

static PyObject *core_place(PyObject *op, PyObject *frame) {
    Key key;
    key.count = 0;
    if (!PyFrame_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "not a frame");
        return NULL;
    }
    if (push_place((Core *)op, &key, (PyFrameObject *)frame) < 0) return NULL;
    return PyBytes_FromStringAndSize((char *)key.words, key.count * sizeof *key.words);
}

static PyObject *core_places(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    int depth;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "iO", &depth, &function)) return NULL;
    self->depth = depth;
    Py_XSETREF(self->is_user, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyObject *core_reads(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *tensor, *fields, *hashed;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &tensor, &PyDict_Type, &fields,
                          &PyDict_Type, &hashed))
        return NULL;
    Py_XSETREF(self->tensor, (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(self->fields, Py_NewRef(fields));
    Py_XSETREF(self->hashed, Py_NewRef(hashed));
    Py_RETURN_NONE;
}

static PyObject *core_forget_calls(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    forget_calls((Core *)op);
    forget_codes((Core *)op);
    Py_RETURN_NONE;
}

static PyObject *core_forget(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Core *self = (Core *)op;
    /* What is in flight is the parent's; a Work must not be destroyed here, and is not held. */
    let_go_of_operations(self);
    PyDict_Clear(self->works);
    PyDict_Clear(self->open);
    PyObject *all = PyThreadState_GetDict();
    self->thread_id = 0;
    if (all != NULL && PyDict_DelItem(all, self->thread_key) < 0) PyErr_Clear();
    return core_forget_calls(op, NULL);
}

static PyObject *core_get_state(PyObject *op, void *Py_UNUSED(closure)) {
    return Py_XNewRef((PyObject *)current_thread((Core *)op));
}

static PyObject *core_get_threads(PyObject *op, void *Py_UNUSED(closure)) {
    return Py_NewRef(op); /* `threads.state` is the calling thread's */
}

static PyObject *core_get_put(PyObject *op, void *Py_UNUSED(closure)) {
    return Py_NewRef(((Core *)op)->put);
}

/* A window's own `put` is not called, but passed by. */
static int core_set_put(PyObject *op, PyObject *value, void *Py_UNUSED(closure)) {
    Core *self = (Core *)op;
    PyObject *bound = NULL;
    if (value != NULL && PyCFunction_Check(value) &&
        PyCFunction_GET_FUNCTION(value) == window_put_method)
        bound = PyCFunction_GET_SELF(value);
    Py_XSETREF(self->window, (Window *)Py_XNewRef(bound));
    Py_XSETREF(self->put, Py_XNewRef(value));
    return 0;
}

static PyObject *core_get_callable(PyObject *op, void *offset) {
    PyObject *value = *(PyObject **)((char *)op + (size_t)offset);
    return Py_NewRef(value ? value : Py_None);
}

static int core_set_callable(PyObject *op, PyObject *value, void *offset) {
    PyObject **place = (PyObject **)((char *)op + (size_t)offset);
    Py_XSETREF(*place, value == Py_None ? NULL : Py_XNewRef(value));
    return 0;
}

static PyMethodDef core_methods[] = {
    {"begin", core_begin_method, METH_VARARGS, NULL},
    {"issued", core_issued_method, METH_O, NULL},
    {"wait_begins", core_wait_begins_method, METH_O, NULL},
    {"end", core_end_method, METH_VARARGS, NULL},
    {"end_synchronous", core_end_synchronous_method, METH_O, NULL},
    {"over", core_over_method, METH_O, NULL},
    {"record", core_record_method, METH_O, NULL},
    {"begins_in_flight", core_begins_in_flight, METH_NOARGS, NULL},
    {"will_wait", core_will_wait, METH_VARARGS, NULL},
    {"waits_for", core_waits_for, METH_VARARGS, NULL},
    {"follow", core_follow, METH_VARARGS, NULL},
    {"followed", core_followed, METH_O, NULL},
    {"unfollow", core_unfollow, METH_O, NULL},
    {"place", core_place, METH_O, "What tells the place of a frame from others, as bytes."},
    {"places", core_places, METH_VARARGS, "Depth of stacks, and who says which code is a user's."},
    {"reads", core_reads, METH_VARARGS, "How arguments are read: Tensor, fields, hashed types."},
    {"forget_calls", core_forget_calls, METH_NOARGS, "Let go of calls and code objects."},
    {"forget", core_forget, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef core_members[] = {
    {"t0", T_LONGLONG, offsetof(Core, t0), 0, NULL},
    {"off", T_BOOL, offsetof(Core, off), 0, "Every call passes as it is."},
    {"works", T_OBJECT, offsetof(Core, works), READONLY, NULL},
    {"open", T_OBJECT, offsetof(Core, open), READONLY, NULL},
    {NULL},
};

static PyGetSetDef core_getset[] = {
    {"state", core_get_state, NULL, NULL, NULL},
    {"threads", core_get_threads, NULL, NULL, NULL},
    {"put", core_get_put, core_set_put, NULL, NULL},
    {"clock", core_get_callable, core_set_callable, NULL, (void *)offsetof(Core, clock)},
    {"ambient", core_get_callable, core_set_callable, NULL, (void *)offsetof(Core, ambient)},
    {"wake", core_get_callable, core_set_callable, NULL, (void *)offsetof(Core, wake)},
    {"dropped", core_get_callable, core_set_callable, NULL, (void *)offsetof(Core, dropped)},
    {NULL},
};

static PyType_Slot core_slots[] = {
    {Py_tp_new, core_new},           {Py_tp_dealloc, core_dealloc},
    {Py_tp_traverse, core_traverse}, {Py_tp_clear, core_clear},
    {Py_tp_methods, core_methods},   {Py_tp_members, core_members},
    {Py_tp_getset, core_getset},     {0, NULL},
};

static PyType_Spec core_spec = {"disttrace.recording._fast.Core", sizeof(Core), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, core_slots};

/* ---- keys of calls: what tells one call of a method from another ---------------------------- */

enum { NONE = 1, BOOL, INT, TEXT, LIST, TENSOR, OPTIONS, HASHED }; /* what follows in a key */

/* Append what tells `value` from another argument. 1: done; 0: it cannot be told, or does not fit;
   -1: an exception. A kind always comes before its words, so no two arguments look alike. */
static int push_value(Core *core, Key *key, PyObject *value, int nested);

static int push_attribute(Core *core, Key *key, PyObject *value, PyObject *name) {
    PyObject *attribute = PyObject_GetAttr(value, name);
    if (attribute == NULL) return -1;
    int done = push_value(core, key, attribute, 1);
    Py_DECREF(attribute);
    return done;
}

static int push_tensor(Core *core, Key *key, PyObject *tensor) {
    State *state = core->state;
    int done = push(key, TENSOR) ? push_attribute(core, key, tensor, state->shape) : 0;
    if (done <= 0) return done;
    PyObject *dtype = PyObject_GetAttr(tensor, state->dtype); /* one object each, for ever */
    if (dtype == NULL) return -1;
    done = push_address(key, dtype);
    Py_DECREF(dtype);
    PyObject *on_cpu = PyObject_GetAttr(tensor, state->is_cpu);
    if (on_cpu == NULL) return -1;
    Py_DECREF(on_cpu); /* True or False, which stay */
    if (on_cpu == Py_True) return done && push(key, NONE);
    /* A device is made anew on each reading, so it is asked only where it is not the usual one. */
    return done ? push_attribute(core, key, tensor, state->device) : 0;
}

static int push_value(Core *core, Key *key, PyObject *value, int nested) {
    if (value == Py_None) return push(key, NONE);
    if (PyBool_Check(value)) return push(key, BOOL) && push(key, value == Py_True);
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow && push(key, INT) && push(key, (uint64_t)number);
    }
    if (PyObject_TypeCheck(value, core->tensor)) return push_tensor(core, key, value);
    if (PyUnicode_CheckExact(value))
        return push(key, TEXT) && push(key, (uint64_t)PyObject_Hash(value));
    if (PyTuple_Check(value) || PyList_Check(value)) { /* a torch.Size is a tuple */
        Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
        int done = nested < 4 && push(key, LIST) && push(key, (uint64_t)count);
        for (Py_ssize_t i = 0; done > 0 && i < PySequence_Fast_GET_SIZE(value); i++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
            done = push_value(core, key, item, nested + 1);
            Py_DECREF(item);
        }
        return done;
    }
    PyObject *names = PyDict_GetItemWithError(core->fields, (PyObject *)Py_TYPE(value));
    if (names != NULL) {
        int done = push(key, OPTIONS) && push_address(key, Py_TYPE(value));
        for (Py_ssize_t i = 0; done > 0 && i < PyTuple_GET_SIZE(names); i++)
            done = push_attribute(core, key, value, PyTuple_GET_ITEM(names, i));
        return done;
    }
    if (PyDict_GetItemWithError(core->hashed, (PyObject *)Py_TYPE(value)) != NULL) {
        Py_hash_t hash = PyObject_Hash(value);
        if (hash == -1 && PyErr_Occurred()) return -1;
        return push(key, HASHED) && push_address(key, Py_TYPE(value)) && push(key, (uint64_t)hash);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- Method: the wrapper of one method ------------------------------------------------------ */

typedef struct Method Method;
typedef PyObject *(*Wrapper)(Method *, PyObject *const *, Py_ssize_t, PyObject *);

struct Method {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Wrapper call;
    Core *core;
    PyObject *original, *name, *doc;
    PyObject *entries;      /* {id(object): its entry, which has a number} */
    PyObject *asynchronous; /* says of a frame whether its call waits; NULL: the options say it */
    /* What is rare, in Python (see capture/hot_path/wrapper.py). */
    PyObject *begin, *returned, *failed, *fail, *is_ours;
    /* Of stores: what a begin record has besides, and {key: its text}; NULL for others. */
    PyObject *describe, *keys;
    int value; /* of stores: position of what is stored, 0: nothing */
    char returns_value;
    PyMethodDef definition; /* of the builtin that stands on the class */
};

/* Our failure, which is set: said and out of the way. -1 where it is not ours, and stays set. */
static int fail(Method *self) {
    PyObject *error = take_error();
    PyObject *done = PyObject_CallOneArg(self->fail, error);
    Py_DECREF(error);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Whether the exception that is set is ours; if so it is taken away. -1: another is set. */
static int forgive(Method *self, PyObject **taken) {
    PyObject *error = take_error();
    PyObject *told = PyObject_CallOneArg(self->is_ours, error);
    int ours = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    if (ours == 0)
        set_error(error);
    else if (taken != NULL)
        *taken = error;
    else
        Py_DECREF(error);
    return ours;
}

/* Number of the entry of a group or store; 0: not known yet, or without a definition. */
static int64_t entry_number(Method *self, PyObject *owner) {
    PyObject *key = PyLong_FromVoidPtr(owner);
    if (key == NULL) return -1;
    PyObject *entry = PyDict_GetItemWithError(self->entries, key);
    Py_DECREF(key);
    if (entry == NULL) return PyErr_Occurred() ? -1 : 0;
    PyObject *n = PyObject_GetAttr(entry, self->core->state->n);
    int64_t number = n ? PyLong_AsLongLong(n) : -1;
    Py_XDECREF(n);
    return number < 0 && !PyErr_Occurred() ? 0 : number;
}

/* The key of a call. 1: done; 0: calls of this form have none; -1: an exception. */
static int push_call(Method *self, Key *key, PyObject *const *args, Py_ssize_t nargs,
                     PyObject *kwnames, int with_arguments) {
    Core *core = self->core;
    int64_t number = entry_number(self, args[0]);
    if (number <= 0) return (int)number;
    int done = push_address(key, self) && push(key, (uint64_t)number);
    if (with_arguments) {
        Py_ssize_t count = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
        done = done && push(key, (uint64_t)nargs);
        for (Py_ssize_t i = 1; done > 0 && i < count; i++) {
            if (i >= nargs) done = push_value(core, key, PyTuple_GET_ITEM(kwnames, i - nargs), 0);
            if (done > 0) done = push_value(core, key, args[i], 0);
        }
        if (done > 0 && self->asynchronous != NULL) {
            PyObject *frame = (PyObject *)PyEval_GetFrame();
            PyObject *told = PyObject_CallOneArg(self->asynchronous, frame ? frame : Py_None);
            done = told ? push_value(core, key, told, 0) : -1;
            Py_XDECREF(told);
        }
    }
    return done > 0 ? push_place(core, key, PyEval_GetFrame()) : done;
}

/* What a begin record of a store operation has besides; NULL without an exception: an unusual form,
   which Python describes. */
static PyObject *store_details(Method *self, PyObject *const *args, Py_ssize_t nargs) {
    char text[2 * LINE], *out = text;
    if (self->keys != NULL) {
        PyObject *made = nargs > 1 && PyUnicode_CheckExact(args[1])
                             ? PyDict_GetItemWithError(self->keys, args[1])
                             : NULL;
        if (made == NULL || PyBytes_GET_SIZE(made) > LINE)
            return NULL; /* Python makes it, its secrets masked */
        memcpy(out, ",\"k\":", 5);
        memcpy(out + 5, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made));
        out += 5 + PyBytes_GET_SIZE(made);
    }
    if (self->value) {
        PyObject *value = nargs > 1 + self->value ? args[1 + self->value] : NULL;
        int64_t size;
        if (value != NULL && PyBytes_CheckExact(value))
            size = PyBytes_GET_SIZE(value);
        else if (value != NULL && PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value))
            size = PyUnicode_GET_LENGTH(value);
        else
            return NULL;
        memcpy(out, ",\"n\":", 5);
        out = put_number(out + 5, size);
    }
    return PyBytes_FromStringAndSize(text, out - text);
}

/* The arguments as Python's functions get them: a tuple without the object, and a dictionary. */
static PyObject *rarely(PyObject *function, PyObject *first, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames) {
    PyObject *positional = PyTuple_New(nargs - 1), *named = PyDict_New(), *result = NULL;
    int failed = positional == NULL || named == NULL;
    for (Py_ssize_t i = 1; !failed && i < nargs; i++)
        PyTuple_SET_ITEM(positional, i - 1, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; !failed && kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++)
        failed = PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0;
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (!failed && first == NULL)
        result = PyObject_CallFunctionObjArgs(function, positional, named, NULL);
    else if (!failed)
        result = PyObject_CallFunctionObjArgs(function, first, args[0], positional, named,
                                              frame ? frame : Py_None, NULL);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

/* Begin a call that was not seen before, or that has not the usual form. */
static Operation *begin_rarely(Method *self, Thread *thread, const Key *key, uint64_t hash,
                               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    PyObject *made = rarely(self->begin, (PyObject *)thread, args, nargs, kwnames);
    if (made == NULL) return NULL;
    if (!core_is_operation(self->core, made)) {
        Py_DECREF(made);
        return NULL;
    }
    Operation *operation = (Operation *)made;
    if (key != NULL && operation->call->whole)
        remember_call(self->core, key, hash, operation->call);
    return operation;
}

/* Put the begin on record. NULL with an exception. */
static Operation *begin(Method *self, Thread *thread, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames) {
    Key key;
    key.count = 0;
    PyObject *details = NULL;
    int is_store = self->describe != NULL;
    if (is_store) {
        if (kwnames == NULL) details = store_details(self, args, nargs);
        if (details == NULL && !PyErr_Occurred())
            details = rarely(self->describe, NULL, args, nargs, kwnames);
        if (details == NULL) return NULL;
    }
    int done = push_call(self, &key, args, nargs, kwnames, !is_store);
    if (done < 0 &&
        forgive(self, NULL) <= 0) { /* a property of the user's raised it, or a handler */
        Py_XDECREF(details);
        return NULL;
    }
    uint64_t hash = done > 0 ? key_hash(&key) : 0;
    Call *call = done > 0 ? find_call(self->core, &key, hash) : NULL;
    Operation *operation;
    if (call == NULL)
        operation = begin_rarely(self, thread, done > 0 ? &key : NULL, hash, args, nargs, kwnames);
    else {
        Py_INCREF(call); /* `ambient` may run Python, which may forget the table */
        if (details != NULL && PyBytes_GET_SIZE(details) == 0) Py_CLEAR(details);
        operation = core_begin(self->core, thread, call, details);
        Py_DECREF(call);
    }
    Py_XDECREF(details);
    return operation;
}

/* The user's call raised: its exception is set, and stays. */
static void failed(Method *self, Thread *thread, Operation *operation) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    PyObject *done = PyObject_CallFunctionObjArgs(self->failed, thread, operation, error, NULL);
    if (done == NULL && fail(self) < 0) { /* a handler's came meanwhile: it is the newer one */
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return;
    }
    Py_XDECREF(done);
    PyErr_Restore(type, error, traceback);
}

static int returned_rarely(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    PyObject *done = PyObject_CallFunctionObjArgs(self->returned, thread, operation, result, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* A collective or a message was issued: its end is in the wait, which its public function does
   itself if it is synchronous. */
static int issue_returned(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    Core *core = self->core;
    if (result != Py_None && operation->call->synchronous) {
        int done = 0;
        if (operation->call->device_ends) /* its wait orders streams, and the device goes on */
            done = core_issued(core, operation);
        else
            operation->issued = now(core) - operation->begin;
        will_wait(thread, operation, result);
        return done;
    }
    if (result == Py_None || operation->call->device_ends ||
        (thread->batches != NULL && thread->batches != Py_None))
        return returned_rarely(self, thread, operation, result);
    if (core_issued(core, operation) < 0) return -1;
    if (follow(core, operation, result) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
        PyErr_Clear(); /* a Python subclass without weak references: Python says so */
        return returned_rarely(self, thread, operation, result);
    }
    PyObject *key = PyLong_FromVoidPtr(result);
    int first = PyDict_GET_SIZE(core->open) == 0;
    int done = key ? PyDict_SetItem(core->open, key, (PyObject *)operation) : -1;
    Py_XDECREF(key);
    if (done == 0 && first && core->wake != NULL) {
        PyObject *woken = PyObject_CallNoArgs(core->wake);
        Py_XDECREF(woken);
        done = woken ? 0 : -1;
    }
    return done;
}

/* A store operation is over when its call returns. */
static int store_returned(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    if (!self->returns_value) return core_end(self->core, operation, NULL);
    int64_t size;
    if (PyBytes_CheckExact(result))
        size = PyBytes_GET_SIZE(result);
    else
        return returned_rarely(self, thread, operation, result);
    char text[32] = ",\"n\":";
    PyObject *extra = PyBytes_FromStringAndSize(text, put_number(text + 5, size) - text);
    int done = extra ? core_end(self->core, operation, extra) : -1;
    Py_XDECREF(extra);
    return done;
}

static PyObject *call_recorded(Method *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames) {
    Core *core = self->core;
    if (core->off || nargs < 1) return PyObject_Vectorcall(self->original, args, nargs, kwnames);
    Thread *thread = current_thread(core);
    if (thread != NULL && thread->inside)
        return PyObject_Vectorcall(self->original, args, nargs, kwnames);
    Operation *operation = thread ? begin(self, thread, args, nargs, kwnames) : NULL;
    if (operation == NULL) {
        PyObject *ours = NULL;
        if (forgive(self, &ours) <= 0) return NULL;
        PyObject *result = PyObject_Vectorcall(self->original, args, nargs, kwnames);
        if (result != NULL) { /* what torch refuses, too, is no failure of ours */
            set_error(ours);
            if (fail(self) < 0) Py_CLEAR(result);
        } else
            Py_DECREF(ours);
        return result;
    }
    Py_INCREF(thread);
    thread->inside = 1;
    PyObject *result = PyObject_Vectorcall(self->original, args, nargs, kwnames);
    thread->inside = 0;
    if (result == NULL)
        failed(self, thread, operation);
    else {
        int done = self->describe ? store_returned(self, thread, operation, result)
                                  : issue_returned(self, thread, operation, result);
        if (done < 0 && fail(self) < 0) Py_CLEAR(result);
    }
    Py_DECREF(thread);
    Py_DECREF(operation);
    return result;
}

/* The wait of a Work: of a call that waits itself, or later, or of one that nobody knows. */
static PyObject *call_wait(Method *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames) {
    Core *core = self->core;
    if (core->off || nargs < 1) return PyObject_Vectorcall(self->original, args, nargs, kwnames);
    Thread *thread = current_thread(core);
    if (thread != NULL && thread->inside)
        return PyObject_Vectorcall(self->original, args, nargs, kwnames);
    Operation *operation = thread ? waits_for(thread, args[0]) : NULL;
    int synchronous = operation != NULL, done = thread ? 0 : -1;
    if (operation == NULL && done == 0) {
        operation = followed(core, args[0]);
        done = operation ? core_wait_begins(core, operation) : PyErr_Occurred() ? -1 : 0;
    }
    if (done < 0 && fail(self) < 0) {
        Py_XDECREF(operation);
        return NULL;
    }
    if (operation == NULL) return PyObject_Vectorcall(self->original, args, nargs, kwnames);
    Py_INCREF(thread);
    thread->inside = 1;
    PyObject *result = PyObject_Vectorcall(self->original, args, nargs, kwnames);
    thread->inside = 0;
    Call *call = operation->call;
    if (result == NULL)
        failed(self, thread, operation);
    else {
        if (call->counter == NULL || call->device_ends || operation->more || operation->held)
            done = returned_rarely(self, thread, operation, args[0]);
        else if (synchronous)
            done = core_end_synchronous(core, operation);
        else {
            done = unfollow(core, operation);
            if (core_end(core, operation, NULL) < 0) done = -1;
        }
        if (done < 0 && fail(self) < 0) Py_CLEAR(result);
    }
    Py_DECREF(thread);
    Py_DECREF(operation);
    return result;
}

static PyObject *method_call(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames) {
    return ((Method *)op)->call((Method *)op, args, nargs, kwnames);
}

static PyObject *method_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                                   PyObject *kwnames) {
    return ((Method *)op)->call((Method *)op, args, PyVectorcall_NARGS(nargsf), kwnames);
}

static PyObject *optional(PyObject *value) {
    return value == NULL || value == Py_None ? NULL : Py_NewRef(value);
}

static PyObject *method_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"core",    "name",    "original",      "wrapper",
                            "is_ours", "entries", "asynchronous",  "describe",
                            "keys",    "value",   "returns_value", NULL};
    State *state = PyType_GetModuleState(type);
    PyObject *core, *name, *original, *wrapper, *is_ours, *entries = NULL, *asynchronous = NULL,
                                                       *describe = NULL, *keys = NULL;
    int value = 0, returns_value = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UOOO|OOOOip", names, state->core, &core,
                                     &name, &original, &wrapper, &is_ours, &entries, &asynchronous,
                                     &describe, &keys, &value, &returns_value))
        return NULL;
    Method *self = (Method *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = method_vectorcall;
    self->core = (Core *)Py_NewRef(core);
    self->name = Py_NewRef(name);
    self->original = Py_NewRef(original);
    self->is_ours = Py_NewRef(is_ours);
    self->entries = optional(entries);
    self->asynchronous = optional(asynchronous);
    self->keys = optional(keys);
    self->value = value;
    self->returns_value = (char)returns_value;
    self->begin = PyObject_GetAttrString(wrapper, "begin");
    self->returned = PyObject_GetAttrString(wrapper, "returned");
    self->failed = PyObject_GetAttrString(wrapper, "failed");
    self->fail = PyObject_GetAttrString(wrapper, "fail");
    self->describe = optional(describe);
    self->doc = PyObject_GetAttrString(original, "__doc__");
    if (self->doc == NULL) PyErr_Clear();
    if (!self->begin || !self->returned || !self->failed || !self->fail) {
        Py_DECREF(self);
        return NULL;
    }
    self->call = self->entries ? call_recorded : call_wait;
    self->definition.ml_name = PyUnicode_AsUTF8(self->name);
    self->definition.ml_meth = (PyCFunction)(void (*)(void))method_call;
    self->definition.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    if (self->doc != NULL && PyUnicode_Check(self->doc))
        self->definition.ml_doc = PyUnicode_AsUTF8(self->doc);
    PyErr_Clear(); /* a text that is no UTF-8 is no documentation */
    return (PyObject *)self;
}

/* What stands on a class where a builtin stood. pybind11 takes whatever is no builtin for the
   override of a Python subclass, and would call it for ever; its own are made like this. */
static PyObject *method_builtin(PyObject *op, PyObject *from) {
    PyObject *function = PyCFunction_NewEx(&((Method *)op)->definition, op, from);
    PyObject *made = function ? PyInstanceMethod_New(function) : NULL;
    Py_XDECREF(function);
    return made;
}

/* On a class it is a method, as a Python function is. */
static PyObject *method_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

#define METHOD_HELD(method)                                                                        \
    PyObject **const held[] = {(PyObject **)&(method)->core,                                       \
                               &(method)->original,                                                \
                               &(method)->entries,                                                 \
                               &(method)->asynchronous,                                            \
                               &(method)->begin,                                                   \
                               &(method)->returned,                                                \
                               &(method)->failed,                                                  \
                               &(method)->fail,                                                    \
                               &(method)->is_ours,                                                 \
                               &(method)->describe,                                                \
                               &(method)->keys}

static int method_traverse(PyObject *op, visitproc visit, void *arg) {
    Method *self = (Method *)op;
    METHOD_HELD(self);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_VISIT(*held[i]);
    Py_VISIT(Py_TYPE(op));
    return 0;
}

/* No clear: every cycle of a method passes its core or a Python object, which break it. */
static void method_dealloc(PyObject *op) {
    Method *self = (Method *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    METHOD_HELD(self);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_CLEAR(*held[i]);
    Py_CLEAR(self->name);
    Py_CLEAR(self->doc);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef method_methods[] = {
    {"builtin", method_builtin, METH_O, "The same as a builtin of the module of this name."},
    {NULL},
};

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, vectorcall), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Method, name), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(Method, doc), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Method, original), READONLY, NULL},
    {NULL},
};

static PyType_Slot method_slots[] = {
    {Py_tp_new, method_new},           {Py_tp_dealloc, method_dealloc},
    {Py_tp_traverse, method_traverse}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, method_get},     {Py_tp_methods, method_methods},
    {Py_tp_members, method_members},   {0, NULL},
};

static PyType_Spec method_spec = {"disttrace.recording._fast.Method", sizeof(Method), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                      Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                                  method_slots};

/* ---- the module ------------------------------------------------------------------------------ */

static int add_type(PyObject *self, PyTypeObject **place, PyType_Spec *spec) {
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(self, spec, NULL);
    return *place ? PyModule_AddType(self, *place) : -1;
}

static int module_exec(PyObject *self) {
    State *state = PyModule_GetState(self);
    state->shape = PyUnicode_InternFromString("shape");
    state->dtype = PyUnicode_InternFromString("dtype");
    state->is_cpu = PyUnicode_InternFromString("is_cpu");
    state->device = PyUnicode_InternFromString("device");
    state->n = PyUnicode_InternFromString("n");
    if (!state->shape || !state->dtype || !state->is_cpu || !state->device || !state->n) return -1;
    if (add_type(self, &state->window, &window_spec) < 0 ||
        add_type(self, &state->counter, &counter_spec) < 0 ||
        add_type(self, &state->call, &call_spec) < 0 ||
        add_type(self, &state->thread, &thread_spec) < 0 ||
        add_type(self, &state->operation, &operation_spec) < 0 ||
        add_type(self, &state->core, &core_spec) < 0 ||
        add_type(self, &state->method, &method_spec) < 0)
        return -1;
    /* A core says of what types its parts are, as PlainCore does. */
    PyObject *core = (PyObject *)state->core, *name = PyUnicode_FromString("c");
    int failed = name == NULL || PyObject_SetAttrString(core, "name", name) < 0 ||
                 PyObject_SetAttrString(core, "new_window", (PyObject *)state->window) < 0 ||
                 PyObject_SetAttrString(core, "new_counter", (PyObject *)state->counter) < 0 ||
                 PyObject_SetAttrString(core, "new_call", (PyObject *)state->call) < 0 ||
                 PyObject_SetAttrString(core, "new_thread", (PyObject *)state->thread) < 0 ||
                 PyObject_SetAttrString(core, "Method", (PyObject *)state->method) < 0;
    Py_XDECREF(name);
    return failed ? -1 : 0;
}

static int module_traverse(PyObject *self, visitproc visit, void *arg) {
    State *state = PyModule_GetState(self);
    Py_VISIT(state->window);
    Py_VISIT(state->counter);
    Py_VISIT(state->call);
    Py_VISIT(state->thread);
    Py_VISIT(state->operation);
    Py_VISIT(state->core);
    Py_VISIT(state->method);
    return 0;
}

static int module_clear(PyObject *self) {
    State *state = PyModule_GetState(self);
    Py_CLEAR(state->window);
    Py_CLEAR(state->counter);
    Py_CLEAR(state->call);
    Py_CLEAR(state->thread);
    Py_CLEAR(state->operation);
    Py_CLEAR(state->core);
    Py_CLEAR(state->method);
    Py_CLEAR(state->shape);
    Py_CLEAR(state->dtype);
    Py_CLEAR(state->is_cpu);
    Py_CLEAR(state->device);
    Py_CLEAR(state->n);
    return 0;
}

static PyModuleDef_Slot module_init_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.recording._fast",
    .m_doc = "The native core; see core.py.",
    .m_size = sizeof(State),
    .m_slots = module_init_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&module); }
