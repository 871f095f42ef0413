"""What Airflow asks a provider about: connection type, links, options, commands."""

from __future__ import annotations

from typing import Any

from airflow_provider_dpone import options

_BOOLEAN = {"type": ["boolean", "null"]}
_TEXT = {"type": ["string", "null"]}
_SECONDS = {"type": ["number", "null"]}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's information, as the entry point ``apache_airflow_provider`` promises."""
    return {
        "package-name": "airflow-provider-dpone",
        "name": "dpone",
        "description": "Replace the contents of a ClickHouse table: published at most once, proven on every "
        "replica.",
        "integrations": [
            {
                "integration-name": "ClickHouse (dpone)",
                "external-doc-url": "https://clickhouse.com/docs",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "ClickHouse (dpone)",
                "python-modules": ["airflow_provider_dpone.operators"],
            }
        ],
        "hooks": [
            {
                "integration-name": "ClickHouse (dpone)",
                "python-modules": ["airflow_provider_dpone.hooks.clickhouse"],
            }
        ],
        "triggers": [
            {
                "integration-name": "ClickHouse (dpone)",
                "python-modules": ["airflow_provider_dpone.triggers.publication"],
            }
        ],
        "connection-types": [
            {
                "hook-class-name": "airflow_provider_dpone.hooks.clickhouse.DponeClickHouseHook",
                "hook-name": "ClickHouse (dpone)",
                "connection-type": "dpone_clickhouse",
                "conn-fields": _connection_fields(),
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"login": "User", "port": "HTTP port"},
                    "placeholders": {
                        "host": "clickhouse.example.com",
                        "port": "8123, or 8443 with TLS",
                        "login": "default",
                    },
                },
            }
        ],
        "extra-links": ["airflow_provider_dpone.links.receipt.ReceiptLink"],
        "cli": ["airflow_provider_dpone.cli.definition.commands"],
        "config": {
            options.SECTION: {
                "description": "Options of the dpone provider.",
                "options": {name: option.describe() for name, option in options.OPTIONS.items()},
            }
        },
    }


def _connection_fields() -> dict[str, Any]:
    def field(label: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
        return {"label": label, "schema": schema, "description": description}

    return {
        "secure": field("TLS", _BOOLEAN, "Connect with HTTPS."),
        "verify": field("Verify", _BOOLEAN, "Verify the server's certificate. On unless switched off."),
        "ca_cert": field("CA certificate", _TEXT, "Path of a file with the CA's certificates."),
        "client_cert": field("Client certificate", _TEXT, "Path of the client's certificate."),
        "client_cert_key": field("Client key", _TEXT, "Path of the client certificate's key."),
        "hosts": field("Further hosts", _TEXT, "More endpoints, as host or host:port, separated by commas."),
        "replicas": field(
            "Replicas",
            _TEXT,
            'Where each replica is reached, as JSON: {"s1/r1": "host:port", ...}. For clusters of independent '
            "tables, if their own names lead nowhere from Airflow.",
        ),
        "connect_timeout": field("Connect timeout", _SECONDS, "Seconds; 10 by default."),
        "send_receive_timeout": field(
            "Read timeout", _SECONDS, "Seconds for which a server may be silent; 300 by default."
        ),
    }
