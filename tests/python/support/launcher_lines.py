"""What a launcher and its workers write, read as it comes."""

import threading


def read_lines(process, on_line, on_error):
    """Threads that call on_line(pid, text) for each line of a worker, which begins with its pid, and on_error(line)
    for each of the launcher, until both streams have ended."""
    def read_output():
        for line in process.stdout:
            pid, _, text = line.rstrip("\n").partition(" ")
            on_line(int(pid), text)

    def read_errors():
        for line in process.stderr:
            on_error(line)

    readers = [threading.Thread(target=read) for read in (read_output, read_errors)]
    for reader in readers:
        reader.start()
    return readers
