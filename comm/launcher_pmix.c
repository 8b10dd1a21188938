#include "comm/launcher.h"
enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    *launcher = NULL;
    error_set(err, STATUS_USAGE, "rank %d of %d started through PMIx: not supported yet", rank, world);
    return error_hint(err, "srun --mpi=pmi2 -n %d ztrain ...", world);
}
