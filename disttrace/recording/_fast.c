/* The native core: what core.py's PlainCore and capture/hot_path/plain.py do, for every call.

It finds what is called and from where, writes the records of begin, issue, wait and end into the
journal's window, and calls torch's original. Whatever is rare (a call not seen before, an
exception, work of a device, a window that is full) is left to the same Python functions that the
plain core uses, and what need not be fast is Python's too (core.py's NativeCore makes the objects
of the types below). The plain core is the reference: both write the same bytes, and a test compares
them.

Only documented C API is used (PEP 523's for the numbers of code objects, which has a name without
an underscore since 3.12), and nothing of torch: a tensor's shape is an attribute as any other.
All of this runs under the GIL. Between two calls into Python no other thread and no signal handler
can come, which is why there is no lock in this file.

Longer than the other files of this project: its types refer to each other, so it is one object.

Sections: module state, clock, lines, Window, Counter, Call, Thread, Core's fields, Operation,
threads, places, table, keys of calls, Option, records, Core, Method.  */

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
#if PY_VERSION_HEX < 0x030c0000 /* the names before they were documented (PEP 523) */
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_GetExtra _PyCode_GetExtra
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#endif

#ifndef DISTTRACE_SOURCE /* the checksum of this file, see choice.py; 0 fits none */
#define DISTTRACE_SOURCE 0
#endif

enum {
    WAITED = 16,     /* as in operation.py */
    DEEPEST = 100,   /* frames, as in call_site.py */
    KEY_WORDS = 400, /* what a key may have; longer ones are read in Python each time */
    TABLE = 20000,   /* calls, as in call_table.py */
    ROWS = 1 << 15,  /* of the table: more than calls, a power of two */
    LINE = 512,      /* bytes of a line that need no memory of their own */
};

typedef struct Core Core;

/* ---- module state ----------------------------------------------------------------------- */

enum { WINDOW, COUNTER, CALL, THREAD, OPERATION, CORE, OPTION, METHOD, TYPES };
enum { NUMBER, STATE, NAMES };

typedef struct {
    PyTypeObject *types[TYPES];
    PyObject *names[NAMES]; /* that are looked up in the hot path */
    Py_ssize_t numbers;     /* where a code object keeps its number */
    uintptr_t last_code;    /* the highest number of a code object, an even one */
} State;

/* Objects among the members of a type are those that it holds. */
static void clear_members(PyObject *self, const PyMemberDef *members) {
    for (; members->name != NULL; members++)
        if (members->type == T_OBJECT) Py_CLEAR(*(PyObject **)((char *)self + members->offset));
}

static int visit_members(PyObject *self, const PyMemberDef *members, visitproc visit, void *arg) {
    for (; members->name != NULL; members++)
        if (members->type == T_OBJECT) Py_VISIT(*(PyObject **)((char *)self + members->offset));
    return 0;
}

static void free_object(PyObject *self, const PyMemberDef *members) {
    PyTypeObject *type = Py_TYPE(self);
    clear_members(self, members);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Of every type but Core, which alone has subclasses. No clear: every cycle of theirs passes the
   core or an object of Python, which break it. */
static void object_dealloc(PyObject *self) {
    if (PyType_IS_GC(Py_TYPE(self))) PyObject_GC_UnTrack(self);
    free_object(self, Py_TYPE(self)->tp_members);
}

static int object_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return visit_members(self, Py_TYPE(self)->tp_members, visit, arg);
}

/* Whether Python has set this to something. */
static int given(PyObject *value) { return value != NULL && value != Py_None; }

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

/* A record as journal/format.py gives it: a tuple of bytes. A number follows each but the last, and
   before that come further keys. */
typedef PyObject *Template;

enum { BEGIN, BEGIN_UNCOUNTED, ISSUED, WAIT, END, END_SYNCHRONOUS, TEMPLATES };

static char *put_number(char *out, int64_t number) {
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";
    char digits[20], *end = digits + sizeof digits, *first = end;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    if (number < 0) *out++ = '-';
    for (; rest >= 10; rest /= 100) memcpy(first -= 2, pairs + 2 * (rest % 100), 2);
    if (rest > 0 || first == end) *--first = (char)('0' + rest);
    memcpy(out, first, end - first);
    return out + (end - first);
}

static char *put_bytes(char *out, PyObject *text) {
    if (text == NULL) return out;
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text));
    return out + PyBytes_GET_SIZE(text);
}

/* The most bytes that a line with these texts can take. */
static Py_ssize_t line_bound(PyObject *const texts[2]) {
    Py_ssize_t bound = 8 * (12 + 20);
    for (int i = 0; i < 2; i++) bound += texts[i] ? PyBytes_GET_SIZE(texts[i]) : 0;
    return bound;
}

/* Write the record; `texts` are bytes objects or NULL. Returns its length. */
static Py_ssize_t line_from(Template template, char *line, const int64_t *numbers,
                            PyObject *const texts[2]) {
    Py_ssize_t last = PyTuple_GET_SIZE(template) - 1;
    char *out = line;
    for (Py_ssize_t i = 0; i < last; i++)
        out = put_number(put_bytes(out, PyTuple_GET_ITEM(template, i)), numbers[i]);
    out = put_bytes(put_bytes(out, texts[0]), texts[1]);
    return put_bytes(out, PyTuple_GET_ITEM(template, last)) - line;
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

/* ---- Counter: see core.py's NativeCounter ----------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int64_t last;
} Counter;

static PyMemberDef counter_members[] = {
    {"last", T_LONGLONG, offsetof(Counter, last), 0, NULL},
    {NULL},
};

/* ---- Call: as in operation.py --------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int64_t n;
    PyObject *op, *counter, *group, *tag;
    char synchronous, device_ends, whole;
} Call;

static PyMemberDef call_members[] = {
    {"n", T_LONGLONG, offsetof(Call, n), 0, NULL},
    {"op", T_OBJECT, offsetof(Call, op), 0, NULL},
    {"counter", T_OBJECT, offsetof(Call, counter), 0, NULL},
    {"group", T_OBJECT, offsetof(Call, group), 0, NULL},
    {"tag", T_OBJECT, offsetof(Call, tag), 0, NULL},
    {"synchronous", T_BOOL, offsetof(Call, synchronous), 0, NULL},
    {"device_ends", T_BOOL, offsetof(Call, device_ends), 0, NULL},
    {"whole", T_BOOL, offsetof(Call, whole), 0, NULL},
    {NULL},
};

/* ---- Thread: as in operation.py ------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int64_t number;
    PyObject *native, *parents, *batches, *tail;
    PyObject *waited; /* operations whose own call waits for them, innermost last */
    char inside;      /* in a recorded call: what it calls in turn is part of it */
} Thread;

static PyMemberDef thread_members[] = {
    {"number", T_LONGLONG, offsetof(Thread, number), 0, NULL},
    {"native", T_OBJECT, offsetof(Thread, native), 0, NULL},
    {"parents", T_OBJECT, offsetof(Thread, parents), 0, NULL},
    {"batches", T_OBJECT, offsetof(Thread, batches), 0, NULL},
    {"tail", T_OBJECT, offsetof(Thread, tail), 0, NULL},
    {"waited", T_OBJECT, offsetof(Thread, waited), 0, NULL},
    {"inside", T_BOOL, offsetof(Thread, inside), 0, NULL},
    {NULL},
};

/* ---- Core's fields ------------------------------------------------------------------------ */

typedef struct Operation Operation;

typedef struct {
    uint64_t hash;
    uint64_t *words; /* NULL: nothing here */
    int count;
    Call *call;
} Row;

struct Core {
    PyObject_HEAD
    State *state;
    char off; /* everything passes */
    int64_t t0, last_number;
    PyObject *all_templates;       /* a tuple: it is checked once, and its items stay */
    Template templates[TEMPLATES]; /* borrowed from there */
    PyObject *put, *recover, *clock, *ambient, *wake, *dropped; /* set by Python */
    PyObject *is_ours; /* whether an exception is our failure, set by Python */
    PyObject *works, *open;     /* operations by id() of their Work: all, and those not complete */
    Operation *oldest, *newest; /* in flight; each holds a reference */
    PyObject *threads;  /* as in operation.py */
    uint64_t thread_id; /* of the thread that came last */
    Thread *thread;
    /* Places: frames of a stack, and what says of a code object whether it is the user's. */
    int depth;
    PyObject *is_user;
    uintptr_t first_code; /* lower numbers were given under another `is_user` */
    Row *rows;           /* calls by key */
    int row_count;
    /* How arguments are read: {type: attributes that tell calls apart, each an Option or a name;
       None where the hash does, True where the object never changes, too}. */
    PyObject *kinds, *tensor;
    PyObject *of_tensors; /* descriptors of its shape, dtype, is_cpu and device */
    PyObject *plain; /* what characters of a store's key are: 0 look closer, 1 plain, 2 of a run */
};

/* What stands in the place of an attribute of torch's classes: the head of Option and Method. */
typedef struct {
    PyObject_HEAD
    Core *core;
    PyObject *name, *original;
} Wrapper;

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
    if (core->put == NULL) /* the collector took the core apart */
        return 0;
    /* A window's own method is not called, but passed by. */
    if (PyCFunction_Check(core->put) &&
        PyCFunction_GET_FUNCTION(core->put) == window_put_method &&
        window_put((Window *)PyCFunction_GET_SELF(core->put), line, length))
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

static int put_record(Core *core, int kind, const int64_t *numbers, PyObject *first,
                      PyObject *second) {
    char space[LINE], *line = space;
    PyObject *const texts[] = {first, second};
    Py_ssize_t bound = line_bound(texts);
    if (core->all_templates == NULL) return 0; /* the collector took the core apart */
    if (bound > LINE && (line = PyMem_Malloc(bound)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t length = line_from(core->templates[kind], line, numbers, texts);
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
    PyObject *more, *tensors; /* sequences, as in operation.py */
    char asked, ended, held;  /* held: we hold its Work, until it is seen complete */
};

static PyMemberDef operation_members[] = {
    {"core", T_OBJECT, offsetof(Operation, core), READONLY, NULL},
    {"call", T_OBJECT, offsetof(Operation, call), READONLY, NULL},
    {"n", T_LONGLONG, offsetof(Operation, n), READONLY, NULL},
    {"begin", T_LONGLONG, offsetof(Operation, begin), READONLY, NULL},
    {"seq", T_LONGLONG, offsetof(Operation, seq), READONLY, NULL},
    {"issued", T_LONGLONG, offsetof(Operation, issued), 0, NULL},
    {"seen", T_LONGLONG, offsetof(Operation, seen), 0, NULL},
    {"tail", T_OBJECT, offsetof(Operation, tail), READONLY, NULL},
    {"extra", T_OBJECT, offsetof(Operation, extra), READONLY, NULL},
    {"work", T_ULONGLONG, offsetof(Operation, work), 0, NULL},
    {"reference", T_OBJECT, offsetof(Operation, reference), 0, NULL},
    {"more", T_OBJECT, offsetof(Operation, more), 0, NULL},
    {"tensors", T_OBJECT, offsetof(Operation, tensors), 0, NULL},
    {"asked", T_BOOL, offsetof(Operation, asked), 0, NULL},
    {"ended", T_BOOL, offsetof(Operation, ended), READONLY, NULL},
    {"held", T_BOOL, offsetof(Operation, held), 0, NULL},
    {NULL},
};

static Operation *operation_new(Core *core, Call *call, PyObject *tail, PyObject *extra) {
    PyTypeObject *type = core->state->types[OPERATION];
    Operation *self = (Operation *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->core = (Core *)Py_NewRef(core);
    self->call = (Call *)Py_NewRef(call);
    self->tail = Py_NewRef(tail);
    self->extra = Py_XNewRef(extra);
    self->more = PyTuple_New(0); /* the one that there is */
    self->tensors = PyTuple_New(0);
    return self;
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

/* Called as the callback of `reference`: nobody holds its Work any more. */
static PyObject *operation_call(PyObject *op, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    Operation *self = (Operation *)op;
    if (PyTuple_GET_SIZE(args) != 1 || PyTuple_GET_ITEM(args, 0) != self->reference ||
        !given(self->core->dropped))
        Py_RETURN_NONE;
    return PyObject_CallOneArg(self->core->dropped, op);
}

/* ---- threads of a core -------------------------------------------------------------------- */

/* The calling thread's state (borrowed), which `threads` makes at its first use. */
static Thread *current_thread(Core *core) {
    uint64_t id = PyThreadState_GetID(PyThreadState_Get());
    if (core->thread_id == id) return core->thread;
    PyObject *all = core->threads ? core->threads : Py_None; /* or the collector took it */
    PyObject *state = PyObject_GetAttr(all, core->state->names[STATE]);
    if (state == NULL) return NULL;
    if (!Py_IS_TYPE(state, core->state->types[THREAD])) {
        Py_DECREF(state);
        PyErr_SetString(PyExc_TypeError, "not a thread's state");
        return NULL;
    }
    core->thread_id = 0; /* while another is let go of, whatever that runs */
    Py_XSETREF(core->thread, (Thread *)state);
    core->thread_id = id;
    return core->thread;
}

/* The call of `operation` is about to wait for `work` itself. */
static int will_wait(Thread *thread, Operation *operation, PyObject *work) {
    operation->work = (uintptr_t)work;
    if (thread->waited == NULL || PyList_Append(thread->waited, (PyObject *)operation) < 0)
        return -1;
    if (PyList_GET_SIZE(thread->waited) <= WAITED) return 0;
    return PyList_SetSlice(thread->waited, 0, 1, NULL); /* an exception came before its wait */
}

/* Take the operation whose call waits for `work` (a new reference), if there is one. */
static Operation *waits_for(Thread *thread, PyObject *work) {
    Py_ssize_t i = thread->waited ? PyList_GET_SIZE(thread->waited) : 0;
    while (i-- > 0) {
        Operation *operation = (Operation *)PyList_GET_ITEM(thread->waited, i);
        if (operation->work == (uintptr_t)work) {
            Py_INCREF(operation);
            if (PyList_SetSlice(thread->waited, i, i + 1, NULL) < 0) Py_CLEAR(operation);
            return operation;
        }
    }
    return NULL;
}

/* ---- places: code objects and offsets down to the end of the recorded stack ---------------- */

/* The number of a code object, which no other has or had, odd where its frames are the user's;
   0 with an exception. */
static uintptr_t code_number(Core *core, PyObject *code) {
    State *state = core->state;
    void *known = NULL;
    if (PyUnstable_Code_GetExtra(code, state->numbers, &known) < 0) return 0;
    if ((uintptr_t)known >= core->first_code) return (uintptr_t)known;
    PyObject *told = PyObject_CallOneArg(given(core->is_user) ? core->is_user : Py_None, code);
    int user = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    if (user < 0) return 0;
    uintptr_t number = (state->last_code += 2) + (uintptr_t)user;
    return PyUnstable_Code_SetExtra(code, state->numbers, (void *)number) < 0 ? 0 : number;
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

/* Append the place of `frame`. 1: done; 0: it does not fit; -1: an exception. */
static int push_place(Core *core, Key *key, PyFrameObject *frame) {
    int done = 1, left = 0;
    Py_XINCREF(frame);
    for (int i = 0; done > 0 && frame != NULL && i < DEEPEST; i++) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        uintptr_t number = code_number(core, code);
        Py_DECREF(code);
        done = number == 0 ? -1 : push(key, number) && push(key, (uint64_t)PyFrame_GetLasti(frame));
        if (left)
            left--;
        else if (number & 1)
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
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ key->words[i]) * 0x9e3779b97f4a7c15u;
        hash = hash << 27 | hash >> 37; /* the best bits of a product are its upper ones */
    }
    return hash ^ hash >> 32;
}

/* The row of a key, or the empty one where it would stand; NULL where there is no table. */
static Row *find_row(Core *core, const Key *key, uint64_t hash) {
    for (uint64_t i = hash; core->rows != NULL; i++) {
        Row *row = &core->rows[i & (ROWS - 1)];
        if (row->words == NULL) return row;
        if (row->hash == hash && row->count == key->count &&
            memcmp(row->words, key->words, key->count * sizeof *key->words) == 0)
            return row;
    }
    return NULL;
}

static Call *find_call(Core *core, const Key *key) {
    Row *row = find_row(core, key, key_hash(key));
    return row ? row->call : NULL;
}

static void forget_calls(Core *core) {
    Row *rows = core->rows;
    core->rows = NULL;
    core->row_count = 0;
    for (int i = 0; rows != NULL && i < ROWS; i++) {
        PyMem_Free(rows[i].words);
        Py_XDECREF((PyObject *)rows[i].call);
    }
    PyMem_RawFree(rows);
}

/* Remember the call. Without memory nothing is remembered, and nothing is lost by that. */
static void remember_call(Core *core, const Key *key, Call *call) {
    if (core->row_count >= TABLE) forget_calls(core);
    /* The system's memory: what is not used of it does not exist. */
    if (core->rows == NULL) core->rows = PyMem_RawCalloc(ROWS, sizeof(Row));
    uint64_t hash = key_hash(key);
    Row *row = find_row(core, key, hash);
    if (row == NULL || row->words != NULL) return; /* a handler made the same call meanwhile */
    uint64_t *words = PyMem_Malloc(key->count * sizeof *words);
    if (words == NULL) return;
    memcpy(words, key->words, key->count * sizeof *words);
    *row = (Row){hash, words, key->count, (Call *)Py_NewRef(call)};
    core->row_count++;
}

/* ---- keys of calls: what tells one call of a method from another ---------------------------- */

enum { NONE = 1, BOOL, INT, TEXT, LIST, TENSOR, OPTIONS, HASHED }; /* what follows in a key */

/* Append what tells `value` from another argument. 1: done; 0: it cannot be told, or does not fit;
   -1: an exception. A kind always comes before its words, so no two arguments look alike. */
static int push_value(Core *core, Key *key, PyObject *value, int nested);
static int push_option(Core *core, Key *key, PyObject *options, PyObject *option);

/* What descriptor `i` says of a tensor: a search for its name would cost more than that. */
static PyObject *of_tensor(Core *core, PyObject *tensor, int i) {
    PyObject *all = core->of_tensors;
    PyObject *one = given(all) && PyTuple_CheckExact(all) && i < PyTuple_GET_SIZE(all)
                        ? PyTuple_GET_ITEM(all, i)
                        : Py_None;
    descrgetfunc get = Py_TYPE(one)->tp_descr_get;
    if (get != NULL) return get(one, tensor, (PyObject *)Py_TYPE(tensor));
    PyErr_SetString(PyExc_TypeError, "it is not known how tensors are read");
    return NULL;
}

static int push_tensor(Core *core, Key *key, PyObject *tensor) {
    PyObject *read[3] = {NULL}; /* shape; dtype, one object each for ever; whether on the CPU */
    for (int i = 0; i < 3; i++)
        if ((read[i] = of_tensor(core, tensor, i)) == NULL) break;
    int done = read[2] == NULL ? -1 : push(key, TENSOR) && push_address(key, read[1]);
    if (done > 0) done = push_value(core, key, read[0], 1);
    if (done > 0 && read[2] == Py_True)
        done = push(key, NONE);
    else if (done > 0) { /* made anew on each reading, so it is asked only where it is not usual */
        PyObject *device = of_tensor(core, tensor, 3);
        done = device ? push_value(core, key, device, 1) : -1;
        Py_XDECREF(device);
    }
    for (int i = 0; i < 3; i++) Py_XDECREF(read[i]);
    return done;
}

static int push_value(Core *core, Key *key, PyObject *value, int nested) {
    if (value == Py_None) return push(key, NONE);
    if (PyBool_Check(value)) return push(key, BOOL) && push(key, value == Py_True);
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow && push(key, INT) && push(key, (uint64_t)number);
    }
    if (given(core->tensor) && PyObject_TypeCheck(value, (PyTypeObject *)core->tensor))
        return push_tensor(core, key, value);
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
    PyObject *type = (PyObject *)Py_TYPE(value);
    PyObject *names = core->kinds ? PyDict_GetItemWithError(core->kinds, type) : NULL;
    if (names == NULL) return PyErr_Occurred() ? -1 : 0;
    if (PyTuple_Check(names)) {
        int done = push(key, OPTIONS) && push_address(key, type);
        for (Py_ssize_t i = 0; done > 0 && i < PyTuple_GET_SIZE(names); i++)
            done = push_option(core, key, value, PyTuple_GET_ITEM(names, i));
        return done;
    }
    Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1 && PyErr_Occurred()) return -1;
    return push(key, HASHED) && push_address(key, type) && push(key, (uint64_t)hash);
}

/* ---- Option: an attribute of torch's options objects ------------------------------------------

torch's functions make such an object for each call and set its attributes. To read one back costs
as much as all the rest of a key, for C++ makes an object of it; so what is set is remembered until
the call that reads it. */

enum { REMEMBERED = 3 }; /* words of a bool, a number, or an object that has a hash */

typedef struct {
    Wrapper of;        /* torch's property */
    PyObject *options;         /* the object that it was set on last, unless that was read */
    PyObject *value;           /* what it was set to last, of those that never change: */
    uint64_t words[REMEMBERED];
    int count; /* of words; 0: not known */
} Option;

static PyMemberDef option_members[] = {
    {"core", T_OBJECT, offsetof(Option, of.core), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Option, of.name), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Option, of.original), READONLY, NULL},
    {"options", T_OBJECT, offsetof(Option, options), READONLY, NULL},
    {"value", T_OBJECT, offsetof(Option, value), READONLY, NULL},
    {NULL},
};

static int push_option(Core *core, Key *key, PyObject *options, PyObject *entry) {
    Option *self = Py_IS_TYPE(entry, core->state->types[OPTION]) ? (Option *)entry : NULL;
    int done = 1;
    if (self == NULL || self->options != options) {
        PyObject *attribute = PyObject_GetAttr(options, self ? self->of.name : entry);
        done = attribute ? push_value(core, key, attribute, 1) : -1;
        Py_XDECREF(attribute);
        return done;
    }
    for (int i = 0; i < self->count; i++) done = done && push(key, self->words[i]);
    Py_CLEAR(self->options);
    return done;
}

/* The words of a value that is the same whenever it is looked at; without any, `count` is 0. */
static void remember_value(Option *self, PyObject *value) {
    Core *core = self->of.core;
    Key key;
    key.count = 0;
    self->count = 0;
    int fixed = PyBool_Check(value) || PyLong_CheckExact(value) ||
                (core->kinds != NULL &&
                 PyDict_GetItemWithError(core->kinds, (PyObject *)Py_TYPE(value)) == Py_True);
    if (fixed && push_value(core, &key, value, 1) > 0 && key.count <= REMEMBERED) {
        memcpy(self->words, key.words, key.count * sizeof *key.words);
        self->count = key.count;
    }
    PyErr_Clear(); /* then it is read back */
    Py_XSETREF(self->value, Py_NewRef(value));
}

static int option_set(PyObject *op, PyObject *options, PyObject *value) {
    Option *self = (Option *)op;
    PyObject *original = self->of.original;
    Py_CLEAR(self->options);
    int failed = Py_TYPE(original)->tp_descr_set(original, options, value);
    if (failed || value == NULL || self->of.core->off) return failed;
    if (value != self->value) remember_value(self, value);
    if (self->count) self->options = Py_NewRef(options);
    return 0;
}

static PyObject *option_get(PyObject *op, PyObject *options, PyObject *type) {
    Option *self = (Option *)op;
    Py_CLEAR(self->options); /* what is returned may be changed in its place */
    if (options == NULL) return Py_NewRef(op);
    return Py_TYPE(self->of.original)->tp_descr_get(self->of.original, options, type);
}

/* ---- records of operations ------------------------------------------------------------------ */

static Counter *counter_of(Core *core, Call *call) {
    int counted = given(call->counter) &&
                  PyObject_TypeCheck(call->counter, core->state->types[COUNTER]);
    return counted ? (Counter *)call->counter : NULL;
}

/* Put the begin of one operation on record; `extra` is bytes or NULL. A new reference. */
static Operation *core_begin(Core *core, Thread *thread, Call *call, PyObject *extra) {
    PyObject *joined = Py_XNewRef(extra);
    if (given(core->ambient)) {
        PyObject *more = PyObject_CallNoArgs(core->ambient);
        if (more != NULL && joined != NULL)
            PyBytes_ConcatAndDel(&joined, more);
        else
            Py_XSETREF(joined, more);
        if (joined == NULL) return NULL;
    }
    if (thread->tail == NULL || !PyBytes_CheckExact(thread->tail) ||
        (joined != NULL && !PyBytes_CheckExact(joined))) {
        Py_XDECREF(joined);
        PyErr_SetString(PyExc_TypeError, "what a begin record has besides must be bytes");
        return NULL;
    }
    Operation *self = operation_new(core, call, thread->tail, joined);
    Py_XDECREF(joined);
    if (self == NULL) return NULL;
    Counter *counter = counter_of(core, call);
    self->n = ++core->last_number;
    if (counter != NULL) self->seq = ++counter->last;
    self->begin = now(core);
    self->older = core->newest;
    if (core->newest != NULL)
        core->newest->newer = self;
    else
        core->oldest = self;
    core->newest = (Operation *)Py_NewRef(self);
    int64_t numbers[] = {self->n, self->begin - core->t0, call->n, self->seq};
    int kind = counter ? BEGIN : BEGIN_UNCOUNTED;
    if (put_record(core, kind, numbers, self->tail, self->extra) < 0) Py_CLEAR(self);
    return self;
}

static int core_issued(Core *core, Operation *operation) {
    operation->issued = now(core) - operation->begin;
    int64_t numbers[] = {operation->n, operation->issued};
    return put_record(core, ISSUED, numbers, NULL, NULL);
}

static int core_wait_begins(Core *core, Operation *operation) {
    int64_t numbers[] = {operation->n, now(core) - operation->begin};
    return put_record(core, WAIT, numbers, NULL, NULL);
}

static int core_end(Core *core, Operation *operation, PyObject *extra) {
    operation_over(operation); /* the caller holds a reference */
    int64_t numbers[] = {operation->n, now(core) - operation->begin};
    return put_record(core, END, numbers, extra, NULL);
}

static int core_end_synchronous(Core *core, Operation *operation) {
    operation_over(operation);
    int64_t numbers[] = {operation->n, now(core) - operation->begin, operation->issued};
    return put_record(core, END_SYNCHRONOUS, numbers, NULL, NULL);
}

/* `work` ends the operation, and is not seen complete yet. */
static int follow(Core *core, Operation *operation, PyObject *work) {
    PyObject *key = PyLong_FromVoidPtr(work), *value = (PyObject *)operation;
    PyObject *reference = key ? PyWeakref_NewRef(work, value) : NULL;
    int done = -1, first = PyDict_GET_SIZE(core->open) == 0;
    if (reference != NULL) {
        Py_XSETREF(operation->reference, reference);
        operation->work = (uintptr_t)work;
        done = PyDict_SetItem(core->works, key, value);
        if (done == 0) done = PyDict_SetItem(core->open, key, value);
    }
    Py_XDECREF(key);
    if (done < 0 || !first || !given(core->wake)) return done;
    PyObject *woken = PyObject_CallNoArgs(core->wake);
    Py_XDECREF(woken);
    return woken ? 0 : -1;
}

/* The operation that `work` ends (a new reference), if it is not over; NULL without an exception
   where there is none. */
static Operation *followed(Core *core, PyObject *work) {
    if (PyDict_GET_SIZE(core->works) == 0) return NULL;
    PyObject *key = PyLong_FromVoidPtr(work);
    PyObject *found = key ? PyDict_GetItemWithError(core->works, key) : NULL;
    Py_XDECREF(key);
    if (found == NULL || !Py_IS_TYPE(found, core->state->types[OPERATION])) return NULL;
    Operation *operation = (Operation *)found;
    if (operation->reference == NULL || !PyWeakref_Check(operation->reference)) return NULL;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *refers;
    if (PyWeakref_GetRef(operation->reference, &refers) < 0) return NULL;
    Py_XDECREF(refers); /* only its address is looked at */
#else
    PyObject *refers = PyWeakref_GetObject(operation->reference);
#endif
    return refers == work ? (Operation *)Py_NewRef(operation) : NULL;
}

static int take_out(PyObject *dictionary, PyObject *key, Operation *operation) {
    PyObject *found = PyDict_GetItemWithError(dictionary, key);
    if (found == (PyObject *)operation) return PyDict_DelItem(dictionary, key);
    return found == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Nothing more is expected of its Work. */
static int unfollow(Core *core, Operation *operation) {
    PyObject *key = PyLong_FromVoidPtr((void *)operation->work);
    if (key == NULL) return -1;
    Py_CLEAR(operation->reference);
    int done = take_out(core->works, key, operation);
    if (done == 0) done = take_out(core->open, key, operation);
    Py_DECREF(key);
    return done;
}

/* ---- Core: what Python sees ---------------------------------------------------------------- */

static PyMemberDef core_members[] = {
    {"off", T_BOOL, offsetof(Core, off), 0, "Every call passes as it is."},
    {"t0", T_LONGLONG, offsetof(Core, t0), 0, NULL},
    {"put", T_OBJECT, offsetof(Core, put), 0, NULL},
    {"recover", T_OBJECT, offsetof(Core, recover), 0, NULL},
    {"threads", T_OBJECT, offsetof(Core, threads), 0, NULL},
    {"_thread", T_OBJECT, offsetof(Core, thread), READONLY, NULL},
    {"is_ours", T_OBJECT, offsetof(Core, is_ours), 0, NULL},
    {"clock", T_OBJECT, offsetof(Core, clock), 0, NULL},
    {"ambient", T_OBJECT, offsetof(Core, ambient), 0, NULL},
    {"wake", T_OBJECT, offsetof(Core, wake), 0, NULL},
    {"dropped", T_OBJECT, offsetof(Core, dropped), 0, NULL},
    {"_templates", T_OBJECT, offsetof(Core, all_templates), READONLY, NULL},
    {"works", T_OBJECT, offsetof(Core, works), READONLY, NULL},
    {"open", T_OBJECT, offsetof(Core, open), READONLY, NULL},
    {"depth", T_INT, offsetof(Core, depth), 0, "Frames of a stack."},
    {"is_user", T_OBJECT, offsetof(Core, is_user), 0, "Whether code is the user's."},
    {"tensor", T_OBJECT, offsetof(Core, tensor), 0, "torch.Tensor."},
    {"of_tensors", T_OBJECT, offsetof(Core, of_tensors), 0, "See call_key.of_tensors."},
    {"kinds", T_OBJECT, offsetof(Core, kinds), 0, "See call_key.kinds."},
    {"plain", T_OBJECT, offsetof(Core, plain), 0, "See redact.Masker.plain."},
    {NULL},
};

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"templates", NULL};
    static const int numbers[TEMPLATES] = {4, 3, 2, 2, 2, 3};
    PyObject *templates;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyTuple_Type, &templates))
        return NULL;
    int wrong = PyTuple_GET_SIZE(templates) != TEMPLATES;
    for (int i = 0; i < TEMPLATES && !wrong; i++) {
        PyObject *each = PyTuple_GET_ITEM(templates, i);
        wrong = !PyTuple_Check(each) || PyTuple_GET_SIZE(each) != numbers[i] + 1;
        for (int j = 0; !wrong && j <= numbers[i]; j++) {
            PyObject *piece = PyTuple_GET_ITEM(each, j);
            wrong = !PyBytes_Check(piece) || PyBytes_GET_SIZE(piece) > 12;
        }
    }
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, "these are not the pieces of the six records");
        return NULL;
    }
    Core *self = (Core *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    while ((self->state = PyType_GetModuleState(type)) == NULL) { /* a subclass of Python's */
        PyErr_Clear();
        type = type->tp_base;
    }
    self->all_templates = Py_NewRef(templates);
    for (int i = 0; i < TEMPLATES; i++) self->templates[i] = PyTuple_GET_ITEM(templates, i);
    self->first_code = self->state->last_code + 2;
    self->works = PyDict_New();
    self->open = PyDict_New();
    if (!self->works || !self->open) Py_CLEAR(self);
    return (PyObject *)self;
}

static int core_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return visit_members(self, core_members, visit, arg);
}

static int core_clear(PyObject *op) {
    Core *self = (Core *)op;
    self->off = 1;
    self->thread_id = 0;
    clear_members(op, core_members);
    forget_calls(self);
    return 0;
}

static void core_dealloc(PyObject *op) {
    PyObject_GC_UnTrack(op);
    core_clear(op);
    free_object(op, core_members);
}

/* Whether this is an operation, for functions that take one; else an exception is set. */
static int is_operation(Core *self, PyObject *value) {
    if (Py_IS_TYPE(value, self->state->types[OPERATION])) return 1;
    PyErr_SetString(PyExc_TypeError, "not an operation of this core");
    return 0;
}

static PyObject *nothing_unless(int failed) {
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_begin_method(PyObject *op, PyObject *args) {
    PyTypeObject **types = ((Core *)op)->state->types;
    PyObject *thread, *call, *extra = NULL;
    if (!PyArg_ParseTuple(args, "O!O!|S", types[THREAD], &thread, types[CALL], &call, &extra))
        return NULL;
    if (extra != NULL && PyBytes_GET_SIZE(extra) == 0) extra = NULL;
    return (PyObject *)core_begin((Core *)op, (Thread *)thread, (Call *)call, extra);
}

static PyObject *core_issued_method(PyObject *op, PyObject *operation) {
    if (!is_operation((Core *)op, operation)) return NULL;
    return nothing_unless(core_issued((Core *)op, (Operation *)operation));
}

static PyObject *core_wait_begins_method(PyObject *op, PyObject *operation) {
    if (!is_operation((Core *)op, operation)) return NULL;
    return nothing_unless(core_wait_begins((Core *)op, (Operation *)operation));
}

static PyObject *core_end_method(PyObject *op, PyObject *args) {
    PyObject *operation, *extra = NULL;
    PyTypeObject *type = ((Core *)op)->state->types[OPERATION];
    if (!PyArg_ParseTuple(args, "O!|S", type, &operation, &extra)) return NULL;
    return nothing_unless(core_end((Core *)op, (Operation *)operation, extra));
}

static PyObject *core_end_synchronous_method(PyObject *op, PyObject *operation) {
    if (!is_operation((Core *)op, operation)) return NULL;
    return nothing_unless(core_end_synchronous((Core *)op, (Operation *)operation));
}

static PyObject *core_over_method(PyObject *op, PyObject *operation) {
    if (!is_operation((Core *)op, operation)) return NULL;
    operation_over((Operation *)operation);
    Py_RETURN_NONE;
}

static PyObject *core_record_method(PyObject *op, PyObject *line) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(line, &text, &length) < 0) return NULL;
    return nothing_unless(put_line((Core *)op, text, length));
}

static PyObject *core_in_flight(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    PyObject *all = PyList_New(0);
    for (Operation *each = ((Core *)op)->oldest; all != NULL && each != NULL; each = each->newer)
        if (PyList_Append(all, (PyObject *)each) < 0) Py_CLEAR(all);
    return all;
}

/* find(name, group, values, frame[, call]): the call of an operator in a group with these values at
   this place, and None where it is not known. With a call, it is that from now on. */
static PyObject *core_find(PyObject *op, PyObject *args) {
    Core *self = (Core *)op;
    PyObject *name, *group, *values, *frame, *call = NULL;
    if (!PyArg_ParseTuple(args, "OOO!O!|O!", &name, &group, &PyTuple_Type, &values, &PyFrame_Type,
                          &frame, self->state->types[CALL], &call))
        return NULL;
    Key key;
    key.count = 0;
    int done = push_value(self, &key, name, 0);
    if (done > 0) done = push_value(self, &key, group, 0);
    if (done > 0) done = push_value(self, &key, values, 0);
    if (done > 0) done = push_place(self, &key, (PyFrameObject *)frame);
    if (done < 0) return NULL;
    if (done > 0 && call != NULL) remember_call(self, &key, (Call *)call);
    PyObject *found = done > 0 ? (PyObject *)find_call(self, &key) : NULL;
    return Py_NewRef(found ? found : Py_None);
}

static PyObject *core_forget_calls(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Core *self = (Core *)op;
    forget_calls(self);
    self->first_code = self->state->last_code + 2;
    self->thread_id = 0; /* after a fork another thread may have it */
    Py_RETURN_NONE;
}

static PyMethodDef core_methods[] = {
    {"begin", core_begin_method, METH_VARARGS, NULL},
    {"issued", core_issued_method, METH_O, NULL},
    {"wait_begins", core_wait_begins_method, METH_O, NULL},
    {"end", core_end_method, METH_VARARGS, NULL},
    {"end_synchronous", core_end_synchronous_method, METH_O, NULL},
    {"over", core_over_method, METH_O, NULL},
    {"record", core_record_method, METH_O, NULL},
    {"in_flight", core_in_flight, METH_NOARGS, "Operations that are not over, oldest first."},
    {"find", core_find, METH_VARARGS, "A call by name, group, values and frame, or None."},
    {"forget_calls", core_forget_calls, METH_NOARGS, "Let go of calls and of what is known of code."},
    {NULL},
};

/* ---- Method: the wrapper of one method ------------------------------------------------------ */

typedef struct {
    Wrapper of;
    vectorcallfunc vectorcall;
    PyObject *doc;
    PyObject *part;         /* what is rare, in Python (see capture/hot_path/plain.py) */
    PyObject *begin;        /* the part's: of a call that was not seen before */
    PyObject *entries;      /* {id(object): its entry, which has a number}; None: this is a wait */
    PyObject *asynchronous; /* says of a frame whether its call waits; None: the options say it */
    /* Of stores: what a begin record has besides, and {key: its text}. */
    PyObject *describe, *keys;
    int value; /* of stores: position of what is stored, 0: nothing */
    char returns_value;
    PyMethodDef definition; /* of the builtin that stands on the class */
} Method;

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, vectorcall), READONLY, NULL},
    {"core", T_OBJECT, offsetof(Method, of.core), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Method, of.name), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Method, of.original), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(Method, doc), READONLY, NULL},
    {"part", T_OBJECT, offsetof(Method, part), 0, NULL},
    {"begin", T_OBJECT, offsetof(Method, begin), 0, NULL},
    {"entries", T_OBJECT, offsetof(Method, entries), 0, NULL},
    {"asynchronous", T_OBJECT, offsetof(Method, asynchronous), 0, NULL},
    {"describe", T_OBJECT, offsetof(Method, describe), 0, NULL},
    {"keys", T_OBJECT, offsetof(Method, keys), 0, NULL},
    {"value", T_INT, offsetof(Method, value), 0, NULL},
    {"returns_value", T_BOOL, offsetof(Method, returns_value), 0, NULL},
    {NULL},
};

/* Our failure, which is set: said and out of the way. -1 where it is not ours, and stays set. */
static int fail(Method *self) {
    PyObject *error = take_error();
    PyObject *done = PyObject_CallMethod(self->part, "fail", "O", error);
    Py_DECREF(error);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The exception that is set, taken away if it is ours. NULL: it is not, and one is set. */
static PyObject *forgive(Method *self) {
    PyObject *error = take_error();
    PyObject *is_ours = given(self->of.core->is_ours) ? self->of.core->is_ours : Py_None;
    PyObject *told = PyObject_CallOneArg(is_ours, error);
    int ours = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    if (ours > 0) return error;
    if (ours == 0)
        set_error(error);
    else
        Py_DECREF(error);
    return NULL;
}

/* Number of the entry of a group or store; 0: not known yet, or without a definition. */
static int64_t entry_number(Method *self, PyObject *owner) {
    PyObject *key = PyLong_FromVoidPtr(owner);
    PyObject *entry = key ? PyDict_GetItemWithError(self->entries, key) : NULL;
    Py_XDECREF(key);
    if (entry == NULL) return PyErr_Occurred() ? -1 : 0;
    PyObject *n = PyObject_GetAttr(entry, self->of.core->state->names[NUMBER]);
    int64_t number = n ? PyLong_AsLongLong(n) : -1;
    Py_XDECREF(n);
    return number < 0 && !PyErr_Occurred() ? 0 : number;
}

/* The key of a call. 1: done; 0: calls of this form have none; -1: an exception. */
static int push_call(Method *self, Key *key, PyObject *const *args, Py_ssize_t nargs,
                     PyObject *kwnames) {
    Core *core = self->of.core;
    int64_t number = entry_number(self, args[0]);
    if (number <= 0) return (int)number;
    int done = push_address(key, self) && push(key, (uint64_t)number);
    if (!given(self->describe)) { /* the arguments of a store's method are no part of its call */
        Py_ssize_t count = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
        done = done && push(key, (uint64_t)nargs);
        for (Py_ssize_t i = 1; done > 0 && i < count; i++) {
            if (i >= nargs) done = push_value(core, key, PyTuple_GET_ITEM(kwnames, i - nargs), 0);
            if (done > 0) done = push_value(core, key, args[i], 0);
        }
        if (done > 0 && given(self->asynchronous)) {
            PyObject *frame = (PyObject *)PyEval_GetFrame();
            PyObject *told = PyObject_CallOneArg(self->asynchronous, frame ? frame : Py_None);
            done = told ? push_value(core, key, told, 0) : -1;
            Py_XDECREF(told);
        }
    }
    return done > 0 ? push_place(core, key, PyEval_GetFrame()) : done;
}

/* Write the text of a key that nobody could take for a secret, or for more than a word: see
   redact.Masker.plain. NULL: it is another. */
static char *put_plain(Core *core, char *out, PyObject *key) {
    if (!given(core->plain) || !PyBytes_CheckExact(core->plain) ||
        PyBytes_GET_SIZE(core->plain) != 129 || !PyUnicode_IS_COMPACT_ASCII(key) ||
        PyUnicode_GET_LENGTH(key) > LINE / 2)
        return NULL;
    const unsigned char *plain = (unsigned char *)PyBytes_AS_STRING(core->plain);
    const unsigned char *text = PyUnicode_1BYTE_DATA(key);
    int run = 0;
    *out++ = '"';
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(key); i++) {
        run = plain[text[i]] == 2 ? run + 1 : 0;
        if (plain[text[i]] == 0 || run > plain[128]) return NULL;
        *out++ = (char)text[i];
    }
    *out++ = '"';
    return out;
}

/* What a begin record of a store operation has besides; NULL without an exception: an unusual
   form, which Python describes. */
static PyObject *store_details(Method *self, PyObject *const *args, Py_ssize_t nargs) {
    char text[2 * LINE], *out = text;
    if (given(self->keys)) {
        if (nargs < 2 || !PyUnicode_CheckExact(args[1])) return NULL;
        memcpy(out, ",\"k\":", 5);
        out = put_plain(self->of.core, out + 5, args[1]);
        if (out == NULL) {
            PyObject *made = PyDict_GetItemWithError(self->keys, args[1]);
            if (made == NULL || PyBytes_GET_SIZE(made) > LINE)
                return NULL; /* Python makes it, its secrets masked */
            memcpy(text + 5, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made));
            out = text + 5 + PyBytes_GET_SIZE(made);
        }
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

/* Have `function` called with `count` objects before the arguments of a call. */
static PyObject *call_with(PyObject *function, PyObject *const *before, Py_ssize_t count,
                           PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    Py_ssize_t further = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    PyObject **all = PyMem_New(PyObject *, count + further + 1);
    if (all == NULL) return PyErr_NoMemory();
    memcpy(all, before, count * sizeof *all);
    memcpy(all + count, args, further * sizeof *all);
    PyObject *result = PyObject_Vectorcall(function, all, count + nargs, kwnames);
    PyMem_Free(all);
    return result;
}

/* Put the begin on record. NULL with an exception. */
static Operation *begin(Method *self, Thread *thread, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames) {
    Core *core = self->of.core;
    Key key;
    key.count = 0;
    int done = push_call(self, &key, args, nargs, kwnames);
    if (done < 0) { /* a property of the user's raised it, or a handler */
        PyObject *ours = forgive(self);
        if (ours == NULL) return NULL;
        Py_DECREF(ours);
    }
    Call *call = done > 0 ? (Call *)Py_XNewRef((PyObject *)find_call(core, &key)) : NULL;
    if (call == NULL) {
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        PyObject *before[] = {(PyObject *)thread, frame ? frame : Py_None};
        PyObject *made = call_with(self->begin, before, 2, args, nargs, kwnames);
        if (made == NULL) return NULL;
        if (!is_operation(core, made)) Py_CLEAR(made);
        call = made ? ((Operation *)made)->call : NULL;
        if (done > 0 && call != NULL && call->whole) remember_call(core, &key, call);
        return (Operation *)made;
    }
    PyObject *details = NULL;
    if (given(self->describe)) {
        if (kwnames == NULL) details = store_details(self, args, nargs);
        if (details == NULL && !PyErr_Occurred())
            details = call_with(self->describe, args, 0, args + 1, nargs - 1, kwnames);
    }
    Operation *operation = PyErr_Occurred() ? NULL : core_begin(core, thread, call, details);
    Py_XDECREF(details);
    Py_DECREF(call);
    return operation;
}

/* Begin the wait for a Work: of a call that waits itself, or later. NULL without an exception: of
   one that nobody knows. */
static Operation *begin_wait(Core *core, Thread *thread, PyObject *work) {
    Operation *operation = waits_for(thread, work);
    if (operation != NULL || PyErr_Occurred()) return operation;
    operation = followed(core, work);
    if (operation != NULL && core_wait_begins(core, operation) < 0) Py_CLEAR(operation);
    return operation;
}

/* The user's call raised: its exception is set, and stays. */
static void failed(Method *self, Thread *thread, Operation *operation) {
    PyObject *error = take_error();
    PyObject *done = PyObject_CallMethod(self->part, "failed", "OOO", thread, operation, error);
    if (done == NULL && fail(self) < 0) { /* a handler's came meanwhile: it is the newer one */
        Py_DECREF(error);
        return;
    }
    Py_XDECREF(done);
    set_error(error);
}

static int returned_rarely(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    PyObject *done = PyObject_CallMethod(self->part, "returned", "OOO", thread, operation, result);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* A collective or a message was issued: its end is in the wait, which its public function does
   itself if it is synchronous. */
static int issue_returned(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    Core *core = self->of.core;
    Call *call = operation->call;
    if (result != Py_None && call->synchronous) {
        int done = 0;
        if (call->device_ends) /* its wait orders streams, and the device goes on */
            done = core_issued(core, operation);
        else
            operation->issued = now(core) - operation->begin;
        return will_wait(thread, operation, result) < 0 ? -1 : done;
    }
    /* Python says of a Work without weak references that nobody will see it complete. */
    if (result == Py_None || call->device_ends || given(thread->batches) ||
        !PyType_SUPPORTS_WEAKREFS(Py_TYPE(result)))
        return returned_rarely(self, thread, operation, result);
    return core_issued(core, operation) < 0 ? -1 : follow(core, operation, result);
}

/* A store operation is over when its call returns. */
static int store_returned(Method *self, Thread *thread, Operation *operation, PyObject *result) {
    if (!self->returns_value) return core_end(self->of.core, operation, NULL);
    if (!PyBytes_CheckExact(result)) return returned_rarely(self, thread, operation, result);
    char text[32] = ",\"n\":";
    char *end = put_number(text + 5, PyBytes_GET_SIZE(result));
    PyObject *extra = PyBytes_FromStringAndSize(text, end - text);
    int done = extra ? core_end(self->of.core, operation, extra) : -1;
    Py_XDECREF(extra);
    return done;
}

static int wait_returned(Method *self, Thread *thread, Operation *operation, PyObject *work) {
    Core *core = self->of.core;
    Call *call = operation->call;
    if (!counter_of(core, call) || call->device_ends || operation->held ||
        (operation->more != NULL && PyObject_IsTrue(operation->more)))
        return returned_rarely(self, thread, operation, work);
    if (call->synchronous) return core_end_synchronous(core, operation);
    int done = unfollow(core, operation);
    return core_end(core, operation, NULL) < 0 ? -1 : done;
}

static PyObject *method_run(Method *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames) {
    Core *core = self->of.core;
    if (core->off || nargs < 1) return PyObject_Vectorcall(self->of.original, args, nargs, kwnames);
    Thread *thread = current_thread(core);
    if (thread != NULL && thread->inside)
        return PyObject_Vectorcall(self->of.original, args, nargs, kwnames);
    Operation *operation = NULL;
    int is_wait = !given(self->entries), done;
    Py_XINCREF(thread); /* Python runs from here on */
    if (thread != NULL)
        operation = is_wait ? begin_wait(core, thread, args[0])
                            : begin(self, thread, args, nargs, kwnames);
    if (operation == NULL) {
        PyObject *ours = NULL, *result = NULL;
        if (!PyErr_Occurred() || (ours = forgive(self)) != NULL)
            result = PyObject_Vectorcall(self->of.original, args, nargs, kwnames);
        if (ours != NULL && result != NULL) { /* what torch refuses, too, is no failure of ours */
            set_error(ours);
            if (fail(self) < 0) Py_CLEAR(result);
        } else
            Py_XDECREF(ours);
        Py_XDECREF(thread);
        return result;
    }
    thread->inside = 1;
    PyObject *result = PyObject_Vectorcall(self->of.original, args, nargs, kwnames);
    thread->inside = 0;
    if (result == NULL)
        failed(self, thread, operation);
    else {
        if (is_wait)
            done = wait_returned(self, thread, operation, args[0]);
        else if (given(self->describe))
            done = store_returned(self, thread, operation, result);
        else
            done = issue_returned(self, thread, operation, result);
        if (done < 0 && fail(self) < 0) Py_CLEAR(result);
    }
    Py_DECREF(thread);
    Py_DECREF(operation);
    return result;
}

static PyObject *method_call(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames) {
    return method_run((Method *)op, args, nargs, kwnames);
}

static PyObject *method_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                                   PyObject *kwnames) {
    return method_run((Method *)op, args, PyVectorcall_NARGS(nargsf), kwnames);
}

/* Of both types: what stands in the place of `original`, an attribute of a class of torch's. */
static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"core", "name", "original", "part", NULL};
    PyTypeObject **types = ((State *)PyType_GetModuleState(type))->types;
    PyObject *core, *name, *original, *part = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UO|O", names, types[CORE], &core, &name,
                                     &original, &part))
        return NULL;
    if (type == types[METHOD] ? part == NULL : !Py_IS_TYPE(original, &PyProperty_Type)) {
        PyErr_SetString(PyExc_TypeError, "a method comes with its part, an option is a property");
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8(name);
    Wrapper *made = text ? (Wrapper *)type->tp_alloc(type, 0) : NULL;
    if (made == NULL) return NULL;
    made->core = (Core *)Py_NewRef(core);
    made->name = Py_NewRef(name);
    made->original = Py_NewRef(original);
    if (type == types[OPTION]) return (PyObject *)made;
    Method *self = (Method *)made;
    self->vectorcall = method_vectorcall;
    self->part = Py_NewRef(part);
    self->begin = PyObject_GetAttrString(part, "begin");
    self->doc = PyObject_GetAttrString(original, "__doc__");
    self->definition.ml_name = text;
    self->definition.ml_meth = (PyCFunction)(void (*)(void))method_call;
    self->definition.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    if (self->doc != NULL && PyUnicode_Check(self->doc))
        self->definition.ml_doc = PyUnicode_AsUTF8(self->doc);
    PyErr_Clear(); /* without a begin this is a wait; without a text, or with one that is no UTF-8, there is no documentation */
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

static PyMethodDef method_methods[] = {
    {"builtin", method_builtin, METH_O, "The same as a builtin of the module of this name."},
    {NULL},
};

/* ---- the module ------------------------------------------------------------------------------ */

static PyType_Slot window_slots[] = {
    {Py_tp_new, window_new},
    {Py_tp_dealloc, window_dealloc},
    {Py_tp_methods, window_methods},
    {0, NULL},
};
static PyType_Slot counter_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_members, counter_members},
    {0, NULL},
};
static PyType_Slot call_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, call_members},
    {0, NULL},
};
static PyType_Slot thread_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, thread_members},
    {0, NULL},
};
static PyType_Slot operation_slots[] = {
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_call, operation_call},
    {Py_tp_members, operation_members},
    {0, NULL},
};
static PyType_Slot core_slots[] = {
    {Py_tp_new, core_new},           {Py_tp_dealloc, core_dealloc},
    {Py_tp_traverse, core_traverse}, {Py_tp_clear, core_clear},
    {Py_tp_methods, core_methods},   {Py_tp_members, core_members},
    {0, NULL},
};
static PyType_Slot option_slots[] = {
    {Py_tp_new, wrapper_new},          {Py_tp_dealloc, object_dealloc},
    {Py_tp_traverse, object_traverse}, {Py_tp_descr_get, option_get},
    {Py_tp_descr_set, option_set},     {Py_tp_members, option_members},
    {0, NULL},
};
static PyType_Slot method_slots[] = {
    {Py_tp_new, wrapper_new},          {Py_tp_dealloc, object_dealloc},
    {Py_tp_traverse, object_traverse}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, method_get},     {Py_tp_methods, method_methods},
    {Py_tp_members, method_members},   {0, NULL},
};

#define TYPE(name, struct, flags, slots) \
    {"disttrace.recording._fast." name, sizeof(struct), 0, Py_TPFLAGS_DEFAULT | (flags), slots}
static PyType_Spec specs[TYPES] = {
    [WINDOW] = TYPE("Window", Window, 0, window_slots),
    [COUNTER] = TYPE("Counter", Counter, Py_TPFLAGS_BASETYPE, counter_slots),
    [CALL] = TYPE("Call", Call, 0, call_slots),
    [THREAD] = TYPE("ThreadState", Thread, 0, thread_slots),
    [OPERATION] = TYPE("Operation", Operation, Py_TPFLAGS_DISALLOW_INSTANTIATION, operation_slots),
    [CORE] = TYPE("Core", Core, Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, core_slots),
    [OPTION] = TYPE("Option", Option, Py_TPFLAGS_HAVE_GC, option_slots),
    [METHOD] = TYPE("Method", Method,
                    Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                        Py_TPFLAGS_METHOD_DESCRIPTOR,
                    method_slots),
};

static int module_exec(PyObject *self) {
    static const char *const names[] = {"n", "state"};
    State *state = PyModule_GetState(self);
    state->numbers = PyUnstable_Eval_RequestCodeExtraIndex(NULL);
    if (state->numbers < 0) { /* others have them all */
        PyErr_SetString(PyExc_ImportError, "code objects have no room for a number");
        return -1;
    }
    for (int i = 0; i < NAMES; i++)
        if ((state->names[i] = PyUnicode_InternFromString(names[i])) == NULL) return -1;
    for (int i = 0; i < TYPES; i++) {
        state->types[i] = (PyTypeObject *)PyType_FromModuleAndSpec(self, &specs[i], NULL);
        if (state->types[i] == NULL || PyModule_AddType(self, state->types[i]) < 0) return -1;
    }
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static int module_traverse(PyObject *self, visitproc visit, void *arg) {
    State *state = PyModule_GetState(self);
    for (int i = 0; i < TYPES; i++) Py_VISIT(state->types[i]);
    return 0;
}

static int module_clear(PyObject *self) {
    State *state = PyModule_GetState(self);
    for (int i = 0; i < TYPES; i++) Py_CLEAR(state->types[i]);
    for (int i = 0; i < NAMES; i++) Py_CLEAR(state->names[i]);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.recording._fast",
    .m_doc = "The native core; see core.py.",
    .m_size = sizeof(State),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&module); }
