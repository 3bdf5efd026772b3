"""Which test shows what a key does: one at least for each key that is honoured or translated.

A key of a section whose schema depends on its type stands under the name of the schema. `*` stands for all keys of a
section, where a test walks through them.
"""

EFFECTS: dict[str, dict[str, str]] = {
    "tests/config/test_effects.py": {
        "test_the_batch_sizes_are_those_of_the_step": (
            "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps"
        ),
        "test_leaves_up_to_the_persistence_threshold_are_never_gathered": (
            "zero_optimization.stage3_param_persistence_threshold"
        ),
        "test_a_gather_starts_ahead_while_fewer_elements_than_the_prefetch_bucket_are_on_their_way": (
            "zero_optimization.stage3_prefetch_bucket_size"
        ),
        "test_few_live_parameters_leave_no_room_to_keep_one_or_to_gather_it_ahead": (
            "zero_optimization.stage3_max_live_parameters"
        ),
        "test_a_parameter_used_again_beyond_the_reuse_distance_is_gathered_again": (
            "zero_optimization.stage3_max_reuse_distance"
        ),
        "test_summed_gradients_are_as_many_times_the_mean_as_there_are_devices": "gradient_allreduce_op",
        "test_a_mics_group_shares_one_copy_of_the_state": "zero_optimization.mics_shard_size",
        "test_two_levels_divide_the_state_over_all_devices": (
            "zero_optimization.zero_hpz_partition_size jzero.two_level"
        ),
        "test_data_parallel_size_must_be_the_number_of_devices_that_take_different_data": "data_parallel_size",
        "test_elasticity_decides_the_batch_sizes": """
            elasticity.enabled elasticity.max_train_batch_size elasticity.micro_batch_sizes elasticity.min_gpus
            elasticity.max_gpus elasticity.num_gpus_per_node elasticity.prefer_larger_batch elasticity.version
            """,
    },
    "tests/config/test_effects_training.py": {
        "test_the_type_chooses_the_update": "optimizer.type",
        "test_every_parameter_of_an_optimizer_changes_its_update": """
            AdamParams.* LambParams.* LionParams.* MuonParams.* SGDParams.* AdagradParams.* AdadeltaParams.*
            AdamaxParams.* NAdamParams.* RAdamParams.* RMSpropParams.* RpropParams.*
            """,
        "test_the_type_chooses_the_rates": "scheduler.type",
        "test_every_parameter_of_a_schedule_changes_its_rate_or_momentum": """
            WarmupParams.* WarmupDecayParams.* WarmupCosineParams.* OneCycleParams.* LRRangeTestParams.*
            ConstantParams.* LinearParams.* PolynomialParams.* StepParams.* MultiStepParams.* ExponentialParams.*
            CosineAnnealingParams.* WarmRestartsParams.* CyclicParams.* OneCycleLRParams.*
            """,
    },
    "tests/config/resolve/test_elastic.py": {
        "test_batch_sizes_beside_it": "elasticity.ignore_non_elastic_batch_info",
        "test_what_does_not_fit_is_a_sentence": "elasticity.model_parallel_size",
    },
    "tests/config/schema/test_mixed.py": {
        "test_apex_is_fp16_with_its_own_loss_scaler": "amp.enabled",
        "test_apex_at_its_level_of_fp32_or_switched_off_is_fp32": "amp.opt_level",
        "test_apex_with_scales_of_its_own": "amp.loss_scale amp.min_loss_scale amp.max_loss_scale",
        "test_autocast_is_16_bit_compute": "torch_autocast.enabled torch_autocast.dtype",
    },
    "tests/config/test_config.py": {
        "test_what_is_not_here_is_refused_with_advice": "tensor_parallel.autotp_size",
    },
    "tests/offload/test_offload.py": {
        "test_large_parameters_and_their_moments_live_on_the_host": (
            "zero_optimization.offload_optimizer.device zero_optimization.offload_param.device"
        ),
    },
    "tests/offload/nvme/test_nvme.py": {
        "test_a_killed_run_goes_on_from_before_or_after_its_step": ("zero_optimization.offload_optimizer.nvme_path"),
        "test_buffers_and_requests_are_as_many_and_as_large_as_the_file_says": (
            "zero_optimization.offload_optimizer.buffer_count aio.block_size aio.queue_depth aio.intra_op_parallelism"
        ),
    },
    "tests/offload/test_plan.py": {
        "test_a_ratio_keeps_the_smaller_part_on_the_device": "zero_optimization.offload_optimizer.ratio",
        "test_sub_group_size_bounds_a_piece": "zero_optimization.sub_group_size",
    },
    "tests/plan/search/test_auto.py": {
        "test_less_memory_takes_a_higher_stage": "zero_optimization.stage",
        "test_the_micro_batch_shrinks_until_it_fits_and_the_batch_stays": "train_micro_batch_size_per_gpu",
    },
    "tests/engine/test_engine.py": {
        "test_bytes_of_state_are_within_a_percent_of_the_paper_s": "zero_optimization.stage",
        "test_clipping_bounds_the_update_by_the_learning_rate_of_this_step": "gradient_clipping",
    },
    "tests/engine/test_grad_reduce.py": {
        "test_what_arrives_has_the_digits_of_the_wire": "communication_data_type",
        "test_a_sum_beyond_fp16_overflows_only_where_too_little_is_divided_first": "prescale_gradients",
        "test_a_gradient_that_fp16_cannot_divide_arrives_when_it_is_not": "gradient_predivide_factor",
    },
    "tests/gpu_program/test_gradients.py": {
        "test_a_reduction_holds_as_many_elements_as_reduce_bucket_size_says": "zero_optimization.reduce_bucket_size",
        "test_a_gather_holds_as_many_elements_as_allgather_bucket_size_says": "zero_optimization.allgather_bucket_size",
    },
    "tests/gpu_program/test_overlap.py": {
        "test_without_overlap_scanned_layers_hold_less": "zero_optimization.overlap_comm",
    },
    "tests/zero/test_precision.py": {
        "test_the_loss_computes_in_the_configured_dtype_and_the_state_lasts_in_fp32": "fp16.enabled bf16.enabled",
    },
    "tests/zero/test_precision_keys.py": {
        "test_gradients_are_accumulated_in_the_dtype_asked_for": "data_types.grad_accum_dtype",
        "test_what_lasts_in_sixteen_bits_is_updated_in_fp32_and_rounded_once": """
            fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states
            """,
        "test_param_dtype_must_say_what_the_switches_say": "data_types.param_dtype",
        "test_buffers_last_in_their_dtype": "data_types.buffer_dtype",
        "test_kept_parameters_enter_the_loss_in_fp32": "jzero.keep_fp32",
    },
    "tests/zero/test_loss_scale.py": {
        "test_a_static_scale_never_changes": "fp16.loss_scale",
        "test_any_run_follows_the_state_machine": """
            fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.consecutive_hysteresis
            fp16.min_loss_scale jzero.max_loss_scale
            """,
    },
    "tests/engine/test_skips.py": {
        "test_too_many_skipped_steps_in_a_row_end_the_run": "jzero.max_skipped_steps_in_a_row",
    },
    "tests/optim/test_groups.py": {
        "test_a_group_trains_like_an_optimizer_of_its_own": "jzero.param_groups",
    },
    "tests/checkpoint/run/test_folder.py": {
        "test_the_newest_stay_and_those_kept_for_their_step": "jzero.checkpoint.keep_every",
        "test_a_save_is_due_by_the_clock": "jzero.checkpoint.save_minutes",
    },
    "tests/train/test_watchdog.py": {
        "test_the_limit_is_ten_mean_steps_or_the_least": "jzero.hang_seconds",
    },
    "tests/train/test_compile_cache.py": {
        "test_cpus_keep_theirs_if_asked": "jzero.compile_cache",
    },
    "tests/flax/test_rematerialise.py": {
        "test_parameters_travel_as_with_the_model_s_own_option": "jzero.remat.modules",
        "test_only_the_input_of_each_block_goes_to_host_memory": """
            activation_checkpointing.cpu_checkpointing jzero.remat.policy
            """,
    },
    "tests/train/test_trainer.py": {
        "test_the_deepspeed_part_says_what_is_shown_and_written": "steps_per_print dump_state",
    },
    "tests/train/monitor/test_events.py": {
        "test_figures_lie_under_deepspeeds_names_over_samples": """
            tensorboard.enabled tensorboard.job_name csv_monitor.enabled csv_monitor.job_name
            """,
        "test_a_new_run_starts_new_tables": "tensorboard.output_path csv_monitor.output_path",
    },
}
"""File -> test -> the keys whose effect it shows."""
