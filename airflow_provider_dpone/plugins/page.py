"""The plugin: a tab on every task instance and a page in the navigation.

Every process of Airflow may load plugins, and only the api-server shows pages. So nothing of the page is imported
before somebody asks for it.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_dpone.links.address import NAVIGATION, PREFIX, TAB
from airflow_provider_dpone.web.lazy import LazyApp

_FOLDER = PREFIX.removeprefix("/")


class DponePlugin(AirflowPlugin):
    """The page of the provider. An address without a leading slash works under a URL prefix."""

    name = "dpone"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": PREFIX, "name": "dpone"}]  # noqa: RUF012 - Airflow's form
    external_views = [  # noqa: RUF012
        {
            "name": "Publication receipt",
            "href": f"{_FOLDER}/dags/{{DAG_ID}}/runs/{{RUN_ID}}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": TAB,
        },
        {
            "name": "Publications",
            "href": f"{_FOLDER}/",
            "destination": "nav",
            "category": "browse",
            "url_route": NAVIGATION,
        },
    ]
