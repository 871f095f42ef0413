"""What the three operators share: the refresh as a templated value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.sdk import BaseOperator

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.links.receipt import ReceiptLink
from airflow_provider_dpone.values import ClusterRefresh

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import jinja2
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.composition import Connected

    RefreshArgument: TypeAlias = ClusterRefresh | Mapping[str, Any] | XComArg


class RefreshOperator(BaseOperator):
    """An operator on one table of a cluster.

    Airflow renders what is inside of a value by assignment, which a frozen value refuses. So a frozen value
    renders into a new one here, when Airflow renders the operator's fields.

    :param refresh: which table; a value, or a dict with the same names.
    """

    template_fields: Sequence[str] = ("refresh",)
    operator_extra_links = (ReceiptLink(),)

    def __init__(self, *, refresh: RefreshArgument, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.refresh = refresh

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render as every operator does, and frozen values into new ones."""
        # A refresh, or a source of whatever class: asking for the method spares a DAG file their imports.
        if callable(getattr(type(content), "rendered", None)):
            # What a mapped task got from another task's output is data and no template.
            if seen_oids is not None and id(content) in seen_oids:
                return content
            render = super().render_template
            return content.rendered(lambda text: str(render(text, context, jinja_env, seen_oids)))
        return super().render_template(content, context, jinja_env, seen_oids)

    def rendered_refresh(self) -> ClusterRefresh:
        """Return the refresh, after Airflow has rendered it.

        :raises Stopped: ``BAD_INPUT``: a dict that makes no refresh.
        """
        with bad_input():
            match self.refresh:
                case ClusterRefresh() as refresh:
                    return refresh
                case Mapping() as data:
                    return ClusterRefresh.from_mapping(data)
                case _:
                    raise ValueError("refresh must be a ClusterRefresh, or a dict with the same names")

    def connected(self, context: Context, refresh: ClusterRefresh) -> AbstractContextManager[Connected]:
        """Return the ports of this execution, as a context that closes them.

        :raises Stopped: ``BAD_INPUT``: the connection or an option can't be used.
        """
        from airflow_provider_dpone.composition import connect
        from airflow_provider_dpone.operators.context import about, writer

        return connect(
            refresh, writer=writer(context), about=about(context, refresh.clickhouse_conn_id), log=self._say
        )

    def _say(self, message: str) -> None:
        self.log.info("%s", message)
