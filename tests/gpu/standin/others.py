"""others.py LIBRARY: generates C++ for the CUDA symbols of LIBRARY (libtensorflow_framework.so.2).

The functions are weak, so that the stand-in's own take precedence. Those of the driver and the
runtime report "not supported"; the others succeed and do nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys

NAME = re.compile(r"(?:__)?(?:cu[A-Z]|cuda|cublas|cudnn|cufft|cusparse|cusolver|cupti|nvml)\w+")
COMPUTES = re.compile(r"cublas(?!Lt|Xt|Get|Set|Create|Destroy|Log|Alloc|Free|Init|Shut)\w+")
SUPPORT = re.compile(r"(?:__)?(?:cuda|cu[A-Z])")


def main() -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", sys.argv[1]], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    print('#include "device/state.h"')
    print("#define WEAK STANDIN_API __attribute__((weak)) int")
    for name in sorted(name for name in names if NAME.fullmatch(name)):
        done = f'standin::Unsupported("{name}")' if SUPPORT.match(name) else "0"
        if name.startswith("nvml"):
            done = "3"  # the code for "not supported"
        arguments = ""
        if COMPUTES.fullmatch(name):
            arguments, done = "void* handle", "standin::CublasKernel(handle)"
        print(f"WEAK {name}({arguments}) {{ return {done}; }}")


if __name__ == "__main__":
    main()
