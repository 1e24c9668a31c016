//! Values that have the right type and make no sense.

use super::{
    Config, DeviceKind, IdleConfig, MlxConfig, PrecisionSetting, RecoveryConfig, SparseOverride,
    SpecPrefillConfig, SpeculationConfig, SpeculationOverride,
};

/// A value that is refused.
#[derive(Debug, PartialEq)]
pub(super) struct Refused {
    /// Its key, `section.key`.
    pub(super) key: String,
    /// The value.
    pub(super) value: String,
    /// What is allowed.
    pub(super) allowed: String,
}

/// Checks every value by itself, then those that must fit together.
pub(super) fn check(config: &Config) -> Result<(), Refused> {
    let Config {
        model,
        cache,
        specprefill,
        speculation,
        recovery,
        policy,
        scheduler,
        replay,
        sampling,
        sim,
        mlx,
        ui,
    } = config;
    require(
        model.device.kind() != DeviceKind::Mlx || model.precision != PrecisionSetting::Int8,
        "model.precision",
        "int8",
        "\"auto\" or \"f32\" on the mlx device, which has no integer activations",
    )?;
    for (key, path) in [("model.path", &model.path), ("model.draft", &model.draft)] {
        let names_something = path.as_ref().is_none_or(|path| !path.as_os_str().is_empty());
        require(names_something, key, "empty", "a bundled model's name or a path")?;
    }
    whole("model.threads", model.threads, 0, 1024)?;
    block_size("cache.block_tokens", cache.block_tokens, 64)?;
    block_size("cache.hybrid_block_tokens", cache.hybrid_block_tokens, 0)?;
    require(cache.ssd_bytes >= 1 << 20, "cache.ssd_bytes", cache.ssd_bytes, "at least 1MiB")?;
    require(
        cache.ssd_wait_s.is_finite() && (0.0..=3600.0).contains(&cache.ssd_wait_s),
        "cache.ssd_wait_s",
        cache.ssd_wait_s,
        "seconds from 0 to 3600",
    )?;
    check_specprefill(specprefill)?;
    check_speculation(speculation)?;
    check_recovery(recovery)?;
    for (name, says) in policy.names().filter_map(|name| Some((name, policy.get(name)?))) {
        let section = format!("policy.{name}");
        check_sparse(&section, says.specprefill())?;
        check_depth(&section, says.speculation())?;
    }
    whole("scheduler.max_sequences", scheduler.max_sequences, 1, 1024)?;
    whole("scheduler.chunk_tokens", scheduler.chunk_tokens, 1, 65_536)?;
    scheduler.step_tokens.map_or(Ok(()), |tokens| whole("scheduler.step_tokens", tokens, 1, 1 << 20))?;
    if let IdleConfig::Seconds(seconds) = replay.idle {
        not_negative("replay.idle", seconds)?;
    }
    not_negative("replay.idle_scale", replay.idle_scale)?;
    replay.idle_cap_s.map_or(Ok(()), |cap| not_negative("replay.idle_cap_s", cap))?;
    require(
        replay.max_output_tokens > 0,
        "replay.max_output_tokens",
        replay.max_output_tokens,
        "at least 1",
    )?;
    not_negative("sampling.temperature", sampling.temperature.into())?;
    let share = |value: f32| (0.0..=1.0).contains(&value);
    require(
        share(sampling.top_p) && sampling.top_p > 0.0,
        "sampling.top_p",
        sampling.top_p,
        "a fraction above 0, up to 1",
    )?;
    require(share(sampling.min_p), "sampling.min_p", sampling.min_p, "a fraction from 0 to 1")?;
    require(
        sampling.repetition_penalty.is_finite() && sampling.repetition_penalty > 0.0,
        "sampling.repetition_penalty",
        sampling.repetition_penalty,
        "a factor above 0",
    )?;
    whole("sim.context_tokens", sim.context_tokens, 64, 1 << 24)?;
    not_negative("sim.prefill_us_per_token", sim.prefill_us_per_token)?;
    not_negative("sim.prefill_us_per_token_per_kilotoken", sim.prefill_us_per_token_per_kilotoken)?;
    not_negative("sim.decode_us_per_token", sim.decode_us_per_token)?;
    not_negative("sim.verify_us_per_token", sim.verify_us_per_token)?;
    not_negative("sim.forward_us", sim.forward_us)?;
    not_negative("sim.restore_us_per_kilotoken", sim.restore_us_per_kilotoken)?;
    whole("sim.state_bytes_per_token", sim.state_bytes_per_token, 1, 1 << 24)?;
    whole("sim.snapshot_bytes", sim.snapshot_bytes, 0, 1 << 34)?;
    not_negative("sim.scorer_us_per_token", sim.scorer_us_per_token)?;
    not_negative("sim.scorer_decode_us_per_token", sim.scorer_decode_us_per_token)?;
    whole("sim.scorer_state_bytes_per_token", sim.scorer_state_bytes_per_token, 1, 1 << 24)?;
    let acceptance = sim.acceptance;
    require((0.0..=1.0).contains(&acceptance), "sim.acceptance", acceptance, "a number from 0 to 1")?;
    not_negative("sim.head_us_per_token", sim.head_us_per_token)?;
    check_mlx(mlx)?;
    whole("ui.max_fps", ui.max_fps as usize, 1, 60)?;
    check_ram(config)
}

fn check_specprefill(specprefill: &SpecPrefillConfig) -> Result<(), Refused> {
    check_sparse("specprefill", specprefill.says())?;
    whole("specprefill.lookahead", specprefill.lookahead, 1, 256)?;
    require(
        (1..=1023).contains(&specprefill.pool) && specprefill.pool % 2 == 1,
        "specprefill.pool",
        specprefill.pool,
        "an odd number from 1 to 1023",
    )?;
    whole("specprefill.unit", specprefill.unit, 1, 8192)?;
    whole("specprefill.tail_tokens", specprefill.tail_tokens, 0, 1 << 24)
}

/// What a request may set too, in `section`.
fn check_sparse(section: &str, says: SparseOverride) -> Result<(), Refused> {
    if let Some(keep) = says.keep {
        require(keep > 0.0 && keep <= 1.0, &format!("{section}.keep"), keep, "a fraction above 0, up to 1")?;
    }
    if let Some(threshold) = says.threshold {
        let threshold = usize::try_from(threshold).unwrap_or(usize::MAX);
        whole(&format!("{section}.threshold"), threshold, 0, 1 << 24)?;
    }
    Ok(())
}

fn check_speculation(speculation: &SpeculationConfig) -> Result<(), Refused> {
    check_depth("speculation", speculation.says())?;
    whole("speculation.ngram_tokens", speculation.ngram_tokens, 1, 16)?;
    require(speculation.ram_bytes >= 1 << 20, "speculation.ram_bytes", speculation.ram_bytes, "at least 1MiB")
}

/// What a request may set too, in `section`.
fn check_depth(section: &str, says: SpeculationOverride) -> Result<(), Refused> {
    match says.depth {
        Some(depth) => {
            whole(&format!("{section}.depth"), depth as usize, 1, SpeculationConfig::MAX_DEPTH as usize)
        }
        None => Ok(()),
    }
}

fn check_recovery(recovery: &RecoveryConfig) -> Result<(), Refused> {
    let tokens = |key, value: u64, most| whole(key, usize::try_from(value).unwrap_or(usize::MAX), 1, most);
    tokens("recovery.slice_tokens", recovery.slice_tokens, 65_536)?;
    let share = recovery.budget_pct;
    require((0.0..=100.0).contains(&share), "recovery.budget_pct", share, "percent from 0 to 100")?;
    if let Some(most) = recovery.budget_tokens {
        tokens("recovery.budget_tokens", most, 1 << 24)?;
    }
    let window = recovery.window_s;
    require((0.01..=3600.0).contains(&window), "recovery.window_s", window, "seconds from 0.01 to 3600")?;
    tokens("recovery.adoption_blocks", recovery.adoption_blocks, 4096)?;
    let targets = [
        ("recovery.delay_target_s", recovery.delay_target_s),
        ("recovery.ttft_target_s", recovery.ttft_target_s),
        ("recovery.itl_target_s", recovery.itl_target_s),
    ];
    targets
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .try_for_each(|(key, value)| require(value.is_finite() && value > 0.0, key, value, "seconds above 0"))
}

/// A limit below what any model takes is a missing unit: `memory_limit = 48`.
fn check_mlx(mlx: &MlxConfig) -> Result<(), Refused> {
    if let Some(limit) = mlx.memory_limit {
        require(limit >= 64 << 20, "mlx.memory_limit", limit, "at least 64MiB")?;
    }
    if let Some(limit) = mlx.wired_limit {
        require(limit > 0, "mlx.wired_limit", limit, "above 0")?;
    }
    Ok(())
}

/// The smallest state is one block, and with recurrent layers the state of every sequence. What that takes is known before
/// loading on the sim device only; a model that needs more says so when a request finds no room.
fn check_ram(config: &Config) -> Result<(), Refused> {
    let (block, slot) = match config.model.device.kind() {
        DeviceKind::Sim => {
            let block = config.cache.block_tokens_for(config.sim.snapshot_bytes > 0);
            (block * config.sim.state_bytes_per_token, config.sim.snapshot_bytes)
        }
        DeviceKind::Cpu | DeviceKind::Mlx => (1 << 20, 0),
    };
    let (block, slots) = (block as u64, slot as u64 * config.scheduler.max_sequences as u64);
    let mut allowed = format!("at least {}, room for one block", block + slots);
    if slots > 0 {
        allowed += " and the recurrent state of `scheduler.max_sequences` sequences";
    }
    require(config.cache.ram_bytes >= block + slots, "cache.ram_bytes", config.cache.ram_bytes, &allowed)
}

fn require(holds: bool, key: &str, value: impl ToString, allowed: &str) -> Result<(), Refused> {
    if holds {
        Ok(())
    } else {
        Err(Refused { key: key.to_owned(), value: value.to_string(), allowed: allowed.into() })
    }
}

fn whole(key: &str, value: usize, least: usize, most: usize) -> Result<(), Refused> {
    require((least..=most).contains(&value), key, value, &format!("{least} to {most}"))
}

fn block_size(key: &str, tokens: usize, least: usize) -> Result<(), Refused> {
    let fits = (least..=8192).contains(&tokens) && tokens.is_multiple_of(64);
    require(fits, key, tokens, &format!("a multiple of 64 from {least} to 8192"))
}

fn not_negative(key: &str, value: f64) -> Result<(), Refused> {
    require(value.is_finite() && value >= 0.0, key, value, "a finite number, 0 or more")
}
