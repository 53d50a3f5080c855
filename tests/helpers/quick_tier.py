"""Choose the tests of `tools/test --quick`, and refuse TVM to them.

They need neither TVM nor a worker, an agent or a server: configuration, data types, statistics,
views, and the parts of other rooms that only compute. A file is in the tier by its place in
`PATHS`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]
PATHS = (
    "config/test_edit_devices_toml.py",
    "config/test_fleet.py",
    "config/test_find_config_file.py",
    "config/test_config_mistakes.py",
    "config/test_quantize.py",
    "config/test_toml_parser.py",
    "config/test_urls.py",
    "commands/test_baseline_comparison.py",
    "commands/test_imported_records.py",
    "commands/test_lines_below_tables.py",
    "commands/test_option_values.py",
    "data_sets/test_data_sets.py",
    "lab/test_boards_lost_from_leases.py",
    "lab/test_lab_toml.py",
    "lab/scheduling/test_lab_scheduler.py",
    "lab/scheduling/test_lab_reservations.py",
    "store/test_predictions.py",
    "store/test_postgres_urls.py",
    "stats/test_agreement.py",
    "pipeline/test_one_build_for_many_devices.py",
    "views/test_closest_name.py",
    "views/test_colours.py",
    "dashboard/test_dashboard.py",
    "dashboard/test_dashboard_device_lines.py",
    "types/test_energy_and_throughput.py",
    "views/test_formatting.py",
    "documentation/test_help.py",
    "pipeline/test_interleaved_models.py",
    "views/test_metrics.py",
    "untrusted_input/test_ownership.py",
    "executor/test_profile_records.py",
    "project/test_quick_tier.py",
    "report/test_report.py",
    "report/test_report_content.py",
    "untrusted_input/test_sanitize.py",
    "documentation/test_schema.py",
    "stats/test_percentiles_agreement_and_verdicts.py",
    "compiler/test_tuning_search.py",
    "types/test_type_methods.py",
    "stats/test_run_verdict.py",
    "stats/test_tied_rows.py",
    "views/test_views.py",
    "transports/test_agent_answers.py",
    "transports/test_agent_key_files.py",
    "transports/test_android_facts.py",
    "transports/test_board_architecture.py",
    "transports/test_rpc_errors.py",
    "transports/test_gpu_preflight.py",
    "transports/test_rpc_silence_timeout.py",
    "transports/test_rpc_handshake.py",
    "transports/ssh/test_ssh_config.py",
    "transports/ssh/test_ssh_errors.py",
    "transports/ssh/test_upload.py",
)
REFUSED = ("tvm", "tvm_ffi")


class TvmRefused(ImportError):
    """A test of the quick tier has imported TVM."""


class RefuseTvm(MetaPathFinder):
    """Fail each import of TVM, in this process."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in REFUSED:
            raise TvmRefused(
                f"a test of the quick tier imports {name}: take its file out of PATHS of "
                "tests/helpers/quick_tier.py, or import it later"
            )
        return None


def refuse_tvm() -> None:
    """Make `import tvm` fail from now on. Raises RuntimeError if it has been imported before."""
    if early := [name for name in REFUSED if name in sys.modules]:
        raise RuntimeError(f"{early} imported before the quick tier began")
    sys.meta_path.insert(0, RefuseTvm())


def is_quick(path: Path) -> bool:
    """Whether a file or folder below tests/ belongs to the tier, or has files in it that do."""
    own = path.relative_to(TESTS)
    return any(own.is_relative_to(chosen) or Path(chosen).is_relative_to(own) for chosen in PATHS)
