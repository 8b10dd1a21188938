# SPDX-License-Identifier: Apache-2.0
"""The peer of bench-save.py: torch.distributed.checkpoint saves a state of fp32 tensors, once and then waiting or not.

    bench_save_torch.py FOLDER ROUNDS NUMEL…      prints one line of JSON for each round
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main():
    folder, rounds, sizes = sys.argv[1], int(sys.argv[2]), [int(n) for n in sys.argv[3:]]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    generator = torch.Generator().manual_seed(1)
    state = {f"{kind}.{i}": torch.randn(n, generator=generator) for kind in ("master", "exp_avg", "exp_avg_sq")
             for i, n in enumerate(sizes)}
    for number in range(rounds):
        row = {}
        for how in "sync", "async":
            path = os.path.join(folder, f"{how}-{number}")
            began = time.monotonic()
            if how == "sync":
                dcp.save(state, checkpoint_id=path)
                row["sync"] = time.monotonic() - began
            else:
                future = dcp.async_save(state, checkpoint_id=path)
                row["async_stall"] = time.monotonic() - began
                future.result()
                row["async_total"] = time.monotonic() - began
            os.sync()
            row["bytes"] = sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))
            shutil.rmtree(path)
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
