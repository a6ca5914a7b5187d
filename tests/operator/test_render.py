"""What a spec becomes: arguments, pods, children."""

import json
from typing import Any

import pytest

from kvserving_kernels.formats import KVCacheDType
from kvserving_operator.render.args import engine_args
from kvserving_operator.render.children import (
    Inputs,
    children,
    deployment,
    token_of,
    token_secret,
)
from kvserving_operator.render.engine import Engine, resolve
from kvserving_operator.render.pod import pod_template, template_hash
from kvserving_operator.render.preflight import preflight_pod
from kvserving_operator.render.version import EngineVersion, parse_version, version_of_image
from kvserving_operator.settings import Settings
from kvserving_operator.starting import tried_on
from operatorkit.specs import NAME, NAMESPACE, REF, engine_spec, spec_of

SETTINGS = Settings()


def engine_of(pinned: str | None = None, **spec: Any) -> Engine:
    return resolve(NAME, spec_of(**spec), SETTINGS, pinned)


def args_of(**spec: Any) -> tuple[str, ...]:
    return engine_args(engine_of(**spec))


def template_of(**spec: Any) -> dict[str, Any]:
    return pod_template(REF, engine_of(**spec))


def container_of(**spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = template_of(**spec)["spec"]["containers"][0]
    return container


def environment_of(**spec: Any) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container_of(**spec)["env"]}


def test_every_typed_field_becomes_its_flag() -> None:
    args = args_of(
        model={"name": "tiny", "uri": "pvc://models/folder/tiny-llama"},
        engine={
            "accelerator": "NVIDIA",
            "maxModelLen": 4096,
            "maxNumSeqs": 32,
            "maxNumBatchedTokens": 2048,
            "gpuMemoryUtilizationPercent": 85,
            "blockSize": 64,
            "parallelism": {"tensor": 4, "pipeline": 2},
            "prefixCaching": "Disabled",
            "chunkedPrefill": "Disabled",
            "weightQuantization": "awq",
            "extraArgs": ["--seed=7", "--enforce-eager"],
        }
        | {"maxNumBatchedTokens": 4096},
        kvCache={"dtype": "fp8_e4m3"},
        rollout={"drainSeconds": 90},
    )
    assert "/models/folder/tiny-llama" == args[0]
    assert {
        "--served-model-name=tiny",
        "--host=0.0.0.0",
        "--port=8000",
        "--max-model-len=4096",
        "--max-num-seqs=32",
        "--max-num-batched-tokens=4096",
        "--gpu-memory-utilization=0.85",
        "--block-size=64",
        "--tensor-parallel-size=4",
        "--pipeline-parallel-size=2",
        "--no-enable-prefix-caching",
        "--no-enable-chunked-prefill",
        "--quantization=awq",
        "--kv-cache-dtype=fp8_e4m3",
        "--disable-access-log-for-endpoints=/health,/metrics,/kvserving/v1/ready",
        "--shutdown-timeout=15",
    } == set(args[1:-2])
    assert ("--seed=7", "--enforce-eager") == args[-2:]


def test_what_is_not_set_is_left_to_the_engine() -> None:
    flags = {arg.partition("=")[0] for arg in args_of()[1:]}
    assert {
        "--served-model-name", "--host", "--port", "--max-num-seqs", "--kv-cache-memory-bytes",
        "--enable-prefix-caching", "--enable-chunked-prefill", "--shutdown-timeout",
        "--disable-access-log-for-endpoints",
    } == flags  # fmt: skip


def test_quantities_become_bytes() -> None:
    assert "--kv-cache-memory-bytes=1610612736" in args_of(
        engine=engine_spec(kvCacheMemory="1.5Gi")
    )


def test_the_resources_name_serves_where_the_model_has_none() -> None:
    assert f"--served-model-name={NAME}" in args_of(model={"uri": "file:///opt/model"})
    assert "/opt/model" == args_of(model={"uri": "file:///opt/model"})[0]


def test_slo_edges_are_bucket_edges_of_engines_that_know_them() -> None:
    slo = {"ttftMilliseconds": 800, "tpotMilliseconds": 50}
    (flag,) = [a for a in args_of(slo=slo) if a.startswith("--custom-histogram-buckets=")]
    families = json.loads(flag.partition("=")[2])
    assert {"time_to_first_token", "inter_token_latency"} == set(families)
    assert 0.8 in families["time_to_first_token"]
    assert {0.05, 0.0425} <= set(families["inter_token_latency"])
    for bounds in families.values():
        assert sorted(set(bounds)) == bounds
        assert bounds[0] > 0
    older = args_of(slo=slo, engine=engine_spec(version="0.31.2", image="example.com/engine:1"))
    assert not any("--custom-histogram-buckets" in arg for arg in older)


def test_old_engines_get_no_flag_they_do_not_know() -> None:
    old = args_of(engine=engine_spec(image="example.com/vllm:v0.11.0", plugin="Disabled"))
    newer = ("--shutdown-timeout", "--disable-access-log-for-endpoints")
    assert not any(arg.startswith(newer) for arg in old)
    unknown = args_of(engine=engine_spec(image="example.com/vllm:latest", plugin="Disabled"))
    assert not any(arg.startswith(newer) for arg in unknown)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", EngineVersion(0, 32)),
        ("registry:5000/engine-cpu:0.33.1-rc1", EngineVersion(0, 33, 1)),
        ("engine:0.6.3@sha256:0123", EngineVersion(0, 6, 3)),
        ("engine:latest", None),
        ("registry:5000/engine", None),
        ("engine@sha256:0123", None),
    ],
)
def test_an_images_tag_names_its_version(image: str, version: EngineVersion | None) -> None:
    assert version == version_of_image(image)


def test_versions_compare_by_number() -> None:
    newer, older = parse_version("0.32.0"), parse_version("v0.9")
    assert newer is not None
    assert older is not None
    assert newer > older
    assert parse_version("main") is None


@pytest.mark.parametrize(("tensor", "pipeline", "wanted"), [(1, 1, "1"), (4, 1, "4"), (2, 2, "4")])
def test_gpus_are_tensor_times_pipeline(tensor: int, pipeline: int, wanted: str) -> None:
    engine = {"accelerator": "NVIDIA", "parallelism": {"tensor": tensor, "pipeline": pipeline}}
    assert {"nvidia.com/gpu": wanted} == container_of(engine=engine)["resources"]["limits"]


def test_the_users_gpus_win_and_other_resources_are_added() -> None:
    resources = {
        "limits": {"nvidia.com/gpu": "1", "memory": "64Gi"},
        "requests": {"cpu": "4", "memory": "8Gi"},
    }
    found = container_of(
        engine={"accelerator": "NVIDIA", "parallelism": {"tensor": 2}},
        podTemplate={"resources": resources},
    )
    assert resources == found["resources"]


def test_a_cpu_engine_asks_for_no_gpu() -> None:
    assert "limits" not in container_of()["resources"]


def test_a_small_limit_of_the_users_is_no_contradiction() -> None:
    found = container_of(podTemplate={"resources": {"limits": {"memory": "512Mi"}}})["resources"]
    assert {"memory": "512Mi"} == found["limits"]
    assert "memory" not in found["requests"]


def test_an_engine_is_never_among_the_first_to_be_evicted() -> None:
    assert {"cpu", "memory"} == set(container_of()["resources"]["requests"])


def test_placement_passes_through() -> None:
    placement = {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
    }
    spec = template_of(podTemplate=placement)["spec"]
    assert placement == {key: spec[key] for key in placement}


def test_the_users_labels_and_environment_are_added_and_never_replace_ours() -> None:
    template = template_of(
        podTemplate={
            "metadata": {"labels": {"team": "search"}, "annotations": {"note": "x"}},
            "env": [
                {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
                {"name": "HF_HOME", "value": "/x"},
            ],
        }
    )
    assert "search" == template["metadata"]["labels"]["team"]
    assert NAME == template["metadata"]["labels"]["kvserving.dev/serving"]
    assert "x" == template["metadata"]["annotations"]["note"]
    env = [entry["name"] for entry in template["spec"]["containers"][0]["env"]]
    assert 1 == env.count("HF_HOME")
    assert "VLLM_LOGGING_LEVEL" in env


def test_pods_meet_the_restricted_security_standard() -> None:
    spec = template_of()["spec"]
    assert spec["automountServiceAccountToken"] is False
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert 65532 == security["runAsUser"]
    assert {"type": "RuntimeDefault"} == security["seccompProfile"]
    container = spec["containers"][0]["securityContext"]
    assert container["allowPrivilegeEscalation"] is False
    assert {"drop": ["ALL"]} == container["capabilities"]
    assert container["readOnlyRootFilesystem"] is True
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_only_a_pod_that_writes_into_a_claim_takes_its_group_over() -> None:
    assert "fsGroup" not in template_of()["spec"]["securityContext"]
    cache = engine_spec(compileCache={"claimName": "kernels"})
    assert 65532 == template_of(engine=cache)["spec"]["securityContext"]["fsGroup"]


def test_a_model_claim_is_mounted_read_only() -> None:
    template = template_of()["spec"]
    (volume,) = [v for v in template["volumes"] if v["name"] == "models"]
    assert {"claimName": "models", "readOnly": True} == volume["persistentVolumeClaim"]
    (mount,) = [m for m in template["containers"][0]["volumeMounts"] if m["name"] == "models"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} == mount
    assert "1" == environment_of()["HF_HUB_OFFLINE"]


def test_a_hub_model_is_downloaded_by_the_engine() -> None:
    model = {"uri": "hf://Qwen/Qwen3-8B", "revision": "abc123"}
    assert "Qwen/Qwen3-8B" == args_of(model=model)[0]
    assert "--revision=abc123" in args_of(model=model)
    assert "HF_HUB_OFFLINE" not in environment_of(model=model)
    assert not any(v["name"] == "models" for v in template_of(model=model)["spec"]["volumes"])


@pytest.mark.parametrize(
    "change",
    [
        {"engine": engine_spec(image="example.com/engine:0.33.0")},
        {"engine": engine_spec(maxModelLen=2048)},
        {"engine": engine_spec(blockSize=32)},
        {"kvCache": {"dtype": "bfloat16"}},
        {"model": {"uri": "pvc://models/other"}},
    ],
)
def test_compiled_code_is_never_shared_across(change: dict[str, Any]) -> None:
    keys = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before, after = environment_of(), environment_of(**change)
    for key in keys:
        assert before[key].startswith("/cache/")
        assert before[key] != after[key]
    other = environment_of(tuning={"mode": "Off"}, replicas=3)
    assert [before[key] for key in keys] == [other[key] for key in keys]


def test_the_compile_cache_may_be_a_claim() -> None:
    spec = template_of(engine=engine_spec(compileCache={"claimName": "kernels"}))["spec"]
    (cache,) = [v for v in spec["volumes"] if v["name"] == "cache"]
    assert {"claimName": "kernels"} == cache["persistentVolumeClaim"]


def test_loading_has_at_least_ten_minutes_and_ready_means_a_completion() -> None:
    container = container_of()
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert int(environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] or 0) > 600
    # Its last words are why it failed, which vLLM's own are not.
    assert ["python3", "-m", "kvserving_kernels.serve"] == container["command"]
    assert "/kvserving/v1/ready" == container["readinessProbe"]["httpGet"]["path"]
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 120


def test_a_stock_image_proves_itself_by_a_completion_at_start() -> None:
    container = container_of(engine=engine_spec(plugin="Disabled"))
    command = container["startupProbe"]["exec"]["command"]
    assert ["python3", "-c"] == command[:2]
    compile(command[2], "probe", "exec")
    assert ["vllm", "serve"] == container["command"]
    assert ["tiny", "8000"] == command[3:]
    assert "KVSERVING_TOKEN" not in {entry["name"] for entry in container["env"]}
    assert "readinessGates" not in template_of(engine=engine_spec(plugin="Disabled"))["spec"]


def test_leaving_pods_have_time_to_drain() -> None:
    spec = template_of(rollout={"drainSeconds": 200})["spec"]
    delay = SETTINGS.endpoint_propagation_seconds
    assert spec["terminationGracePeriodSeconds"] >= delay + 200 + 15
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert ["python3", "-c"] == command[:2]
    assert [str(delay), "200", "http://127.0.0.1:8000/metrics"] == command[3:6]


def test_the_template_carries_the_hash_of_itself() -> None:
    first, second = template_of(), template_of()
    assert first == second
    assert template_hash(first) != template_hash(template_of(engine=engine_spec(maxNumSeqs=8)))


def test_a_check_pod_is_the_engine_without_device_token_and_weights() -> None:
    template = template_of(
        engine={"accelerator": "NVIDIA", "parallelism": {"tensor": 2}},
        podTemplate={"nodeSelector": {"gpu": "h200"}},
    )
    pod = preflight_pod(REF, template, "2Gi", 180)
    engine, check = template["spec"]["containers"][0], pod["spec"]["containers"][0]
    assert engine["image"] == check["image"]
    assert engine["args"] == check["args"]
    assert ["python3", "-m", "kvserving_kernels.preflight", "--"] == check["command"]
    assert "nvidia.com/gpu" not in json.dumps(pod)
    assert {"name": "KVSERVING_GPUS", "value": "2"} in check["env"]
    assert "KVSERVING_TOKEN" not in json.dumps(pod)
    assert "Never" == pod["spec"]["restartPolicy"]
    assert {"gpu": "h200"} == pod["spec"]["nodeSelector"]
    assert "readinessGates" not in pod["spec"]
    # No selector of an engine may ever match it.
    assert not REF.selector.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("engine", "limits", "said"),
    [
        ({"accelerator": "NVIDIA"}, {}, "1"),
        ({"accelerator": "NVIDIA"}, {"nvidia.com/gpu": 4}, "4"),
        # Parts of GPUs, or GPUs without a limit: how many there are is not known.
        ({"accelerator": "NVIDIA"}, {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 1}, None),
        ({"accelerator": "NVIDIA"}, {"nvidia.com/gpu": 0}, None),
        (engine_spec(), {}, "0"),
    ],
)
def test_a_check_is_told_how_many_gpus_the_engine_will_have(
    engine: dict[str, Any], limits: dict[str, Any], said: str | None
) -> None:
    template = template_of(engine=engine, podTemplate={"resources": {"limits": limits}})
    check = preflight_pod(REF, template, "2Gi", 180)["spec"]["containers"][0]
    found = [entry["value"] for entry in check["env"] if entry["name"] == "KVSERVING_GPUS"]
    assert found == ([] if said is None else [said])


def test_a_check_pod_writes_into_no_claim() -> None:
    template = template_of(engine=engine_spec(compileCache={"claimName": "kernels"}))
    pod = preflight_pod(REF, template, "2Gi", 180)
    claims = [
        v["persistentVolumeClaim"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v
    ]
    assert [{"claimName": "models", "readOnly": True}] == claims


def test_one_pod_at_a_time_is_replaced_and_none_added() -> None:
    found = deployment(REF, template_of(), spec_of(), 2, Inputs("inputs", "base", "image"))
    update = {"maxSurge": 0, "maxUnavailable": 1}
    assert update == found["spec"]["strategy"]["rollingUpdate"]
    own = spec_of(rollout={"maxSurge": 1, "maxUnavailable": 0})
    found = deployment(REF, template_of(), own, 2, Inputs("inputs", "base", "image"))
    assert 1 == found["spec"]["strategy"]["rollingUpdate"]["maxSurge"]


def test_the_track_is_in_service_selectors_only() -> None:
    found = deployment(REF, template_of(), spec_of(), 1, Inputs("inputs", "base", "image"))
    assert "kvserving.dev/track" not in found["spec"]["selector"]["matchLabels"]
    made = children(REF, routed=True)
    services = {c["metadata"]["name"]: c["spec"] for c in made if c["kind"] == "Service"}
    assert "kvserving.dev/track" not in services[NAME]["selector"]
    for track in ("stable", "candidate"):
        assert track == services[f"{NAME}-{track}"]["selector"]["kvserving.dev/track"]
    engines = services[f"{NAME}-engines"]
    assert "None" == engines["clusterIP"]
    assert engines["publishNotReadyAddresses"] is True
    assert "kvserving.dev/track" not in engines["selector"]


def test_every_selector_matches_the_pods() -> None:
    labels = template_of()["metadata"]["labels"]
    for child in children(REF):
        spec = child.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            if selector:
                assert selector.get("matchLabels", selector).items() <= labels.items()


def test_children_have_the_names_that_users_are_told() -> None:
    assert [
        ("ServiceAccount", NAME),
        ("Service", NAME),
        ("Service", f"{NAME}-engines"),
        ("PodDisruptionBudget", NAME),
        ("NetworkPolicy", NAME),
    ] == [(c["kind"], c["metadata"]["name"]) for c in children(REF)]
    for child in children(REF):
        assert NAMESPACE == child["metadata"]["namespace"]
        assert child["metadata"]["ownerReferences"][0]["controller"] is True


def test_a_token_can_be_read_back() -> None:
    manifest = token_secret(REF, lambda: "secret-text")
    assert f"{NAME}-token" == manifest["metadata"]["name"]
    assert "secret-text" == token_of({"data": {"token": "c2VjcmV0LXRleHQ="}})
    assert token_of({}) is None


@pytest.mark.parametrize(
    ("engine", "tried", "tokens"),
    [
        ({"accelerator": "NVIDIA"}, (), None),
        ({"accelerator": "NVIDIA"}, ("int8", "fp8_e4m3"), None),
        ({"accelerator": "NVIDIA"}, ("int4",), 64),
        ({"accelerator": "NVIDIA"}, ("int8", "k2v4"), 64),
        ({"accelerator": "NVIDIA", "blockSize": 16}, ("int4",), 16),
        ({"accelerator": "NVIDIA", "plugin": "Disabled"}, ("int4",), None),
        (engine_spec(), ("int4",), None),
    ],
)
def test_blocks_allow_the_formats_that_may_be_tried(
    engine: dict[str, Any], tried: tuple[str, ...], tokens: int | None
) -> None:
    formats = [KVCacheDType(each) for each in tried]
    args = engine_args(resolve(NAME, spec_of(engine=engine), SETTINGS, None, formats))
    found = [each for each in args if each.startswith("--block-size=")]
    assert found == ([] if tokens is None else [f"--block-size={tokens}"])


@pytest.mark.parametrize(
    ("spec", "formats"),
    [
        ({"kvCache": {"dtype": "int4"}}, ()),
        ({"kvCache": {"dtype": "int4"}, "rollbackPolicyRef": {"name": "p"}}, ("int4",)),
        (
            {
                "tuning": {"mode": "Auto", "allowedDtypes": ["auto", "int4"]},
                "rollbackPolicyRef": {"name": "p"},
            },
            ("auto", "auto", "int4"),
        ),
    ],
)
def test_formats_are_tried_under_a_policy(spec: dict[str, Any], formats: tuple[str, ...]) -> None:
    assert tried_on(spec_of(**spec)) == formats


@pytest.mark.parametrize("plugin", ["Enabled", "Disabled"])
def test_whatever_an_engine_writes_has_a_volume(plugin: str) -> None:
    spec = template_of(engine=engine_spec(plugin=plugin))["spec"]
    (container,) = spec["containers"]
    mounts = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert {"/tmp", "/dev/shm", "/cache"} <= mounts
    folders = [
        entry["value"]
        for entry in container["env"]
        if entry["name"].endswith(("HOME", "_ROOT", "_DIR", "DRAIN_FILE"))
    ]
    assert len(folders) >= 5
    assert all(any(f"{each}/".startswith(f"{m}/") for m in mounts) for each in folders), folders


def test_the_network_leads_to_an_engines_one_port() -> None:
    (policy,) = (child for child in children(REF, routed=True) if child["kind"] == "NetworkPolicy")
    ports = template_of()["spec"]["containers"][0]["ports"]
    opened = [{"protocol": "TCP", "port": port["containerPort"]} for port in ports]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"ports": opened}]
