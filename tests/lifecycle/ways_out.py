"""Ways in which a process that used c10d ends; argv names one, and before it how it was started."""

import code
import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing

kept: BaseException | None = None


def use() -> None:
    dist.HashStore().set("key", "value")


def raises() -> None:
    use()
    raise ValueError("first line\nsecond line")


def leaves() -> None:
    use()
    sys.exit(7)


def leaves_with_words() -> None:
    use()
    sys.exit("no data")


def quits() -> None:
    use()
    exit(5)


def leaves_well() -> None:
    use()
    sys.exit()


def catches() -> None:
    try:
        leaves()
    except SystemExit:
        pass


def catches_late() -> None:
    """The exception is kept until the interpreter takes everything down."""
    global kept
    try:
        leaves()
    except SystemExit as error:
        kept = error


def catches_and_leaves() -> None:
    try:
        leaves()
    except SystemExit as error:
        sys.exit(int(error.code or 0) + 1)


def leaves_a_thread() -> None:
    use()
    thread = threading.Thread(target=sys.exit, args=(7,))
    thread.start()
    thread.join()


def leaves_through_others() -> None:
    try:
        leaves()
    finally:
        use()


def leaves_at_once() -> None:
    use()
    os._exit(9)


def killed() -> None:
    use()
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    use()
    os.kill(os.getpid(), signal.SIGTERM)


def aborts() -> None:
    use()
    os.abort()


def interrupted() -> None:
    use()
    raise KeyboardInterrupt


def raises_in_thread() -> None:
    use()
    thread = threading.Thread(target=raises)
    thread.start()
    thread.join()


def leaves_a_daemon() -> None:
    use()
    threading.Thread(target=dist.HashStore().wait, args=(["never"],), daemon=True).start()
    time.sleep(0.05)


def forks_late() -> None:
    time.sleep(0.5)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    child = os.fork()
    if child == 0:
        use()
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def own_hook() -> None:
    sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__)
    raises()


def console() -> None:
    """One of commands: what they raise is shown, and it goes on."""
    use()
    lines = iter(["1 / 0", "x = 3"])

    def read(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    code.interact("", read, {}, "")


def own_console() -> None:
    """The same with a hook of its own, and what it kept to be looked at."""
    sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__)
    console()
    try:
        raises()
    except ValueError as error:
        sys.last_value = error


def fails_after_a_console() -> None:
    console()
    raises()


def times_out() -> None:
    dist.HashStore().wait(["never"], timedelta(milliseconds=10))


def passes_on() -> None:
    """A failure of its own that was raised from what the store raised."""
    try:
        times_out()
    except RuntimeError as error:
        raise ValueError("first line") from error


def says_so() -> None:
    """It raises in its handler, and so tells of what it caught."""
    try:
        times_out()
    except RuntimeError:
        raise ValueError("first line") from None


def goes_on_without() -> None:
    """It does without what did not come in time, and fails by itself."""
    try:
        times_out()
    except RuntimeError:
        int("no number")


def leaves_over_it() -> None:
    try:
        times_out()
    except RuntimeError:
        sys.exit(7)


def leaves_at_once_over_it() -> None:
    try:
        times_out()
    except RuntimeError:
        os._exit(9)


def square(number: int) -> int:
    use()
    return number * number


def spawned(_: int, name: str) -> None:
    globals()[name]()


def main(start: str, name: str) -> None:
    if start == "main":
        globals()[name]()
    elif start == "torch":
        try:
            torch.multiprocessing.spawn(spawned, (name,), nprocs=1)
        except Exception as error:
            print(type(error).__name__, error)
    elif name == "pool":
        with multiprocessing.get_context(start).Pool(2) as pool:
            print(pool.map(square, range(6)))
    else:
        multiprocessing.set_start_method(start)
        process = multiprocessing.Process(target=globals()[name])
        process.start()
        process.join()
        print(process.exitcode)


if __name__ == "__main__":
    main(*sys.argv[1:])
