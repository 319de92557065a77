"""Puts a binary into the wheel, and names its platform."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformWheel(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + os.environ["PLATFORM"]
        build_data["shared_scripts"] = {os.environ["BINARY"]: "promptgate"}
        # The wheel that `.ci/run` tries has no list of its crates.
        build_data["sbom_files"] = [file for file in [os.environ["SBOM"]] if os.path.exists(file)]
