"""How much memory a program took: a snippet for scripts that tests run in a process of their own."""

PEAK = """
def peak():
    '''The most that this program has held, in kilobytes.

    Not `resource.getrusage`: its peak starts at what the process held that started this one, here pytest.
    '''
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
