"""One place of each kind of registry that can be written to, for tests that hold for all of them."""

from pathlib import Path

from oci_registry import DockerRegistry
from web_servers import S3Proxy, S3Server

SECRET = "secret/of+this=test"
KINDS = ("file", "oci", "s3")


class Places:
    """url(KIND, NAME) is a registry of its own; `env` is what dsec needs to get at all of them."""

    def __init__(self, work: Path, server: DockerRegistry, bucket: S3Server):
        self.work, self.server = work, server
        self.s3 = S3Proxy(bucket, SECRET)
        self.env = {"AWS_ENDPOINT_URL": self.s3.endpoint, "AWS_ACCESS_KEY_ID": self.s3.key_id,
                    "AWS_SECRET_ACCESS_KEY": SECRET}

    def url(self, kind: str, name: str = "one") -> str:
        return {"file": f"file://{self.work}/registry-{name}", "oci": f"oci://{self.server.host}/{name}/layers",
                "s3": f"s3://layers/{self.work.name}/{name}"}[kind]

    def stop(self) -> None:
        self.s3.stop()


__all__ = ["Places", "KINDS"]
