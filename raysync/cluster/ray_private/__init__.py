"""All uses of private names of Ray (2.60)."""

# `module:name`
PRIVATE_NAMES = (
    "ray._common.utils:get_default_system_temp_dir",
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER",
    "ray._private.services:start_raylet",
    "ray._private.state:state.get_draining_nodes",
    "ray._private.worker:connect",
    "ray._private.worker:listen_error_messages",
    "ray._private.workers.default_worker:",
    "ray.actor:ActorHandle._actor_id",
)
