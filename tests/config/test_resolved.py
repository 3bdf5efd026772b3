"""`ResolvedConfig`: only resolving a configuration wholly makes one."""

from jzero.config import Config, ResolvedConfig

LOADED = Config.load({"train_batch_size": 32, "gradient_clipping": "auto"})


def test_resolving_gives_another_type():
    resolved = Config.load({"train_batch_size": 32}).resolve(world=8)
    assert type(resolved) is ResolvedConfig
    assert isinstance(resolved, Config)
    assert type(resolved.resolve(world=8)) is ResolvedConfig


def test_what_may_hold_auto_is_not_resolved():
    assert type(LOADED) is Config
    assert type(LOADED.resolve(world=8, partly=True)) is Config


def test_another_value_asks_for_resolving_again():
    resolved = Config.load({"train_batch_size": 32}).resolve(world=8)
    assert type(resolved.replaced({"zero_optimization.stage": "auto"})) is Config
    assert Config.load(resolved) is resolved
