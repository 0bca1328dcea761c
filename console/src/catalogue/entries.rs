//! The table of well-known models. Names and sizes of files are those that Hugging Face reported when the table was
//! written, as public manifests of downloads repeat them; licences and trained contexts are those of the makers' model
//! cards. Tests of this crate have no network: `console model pull` reports a file that was renamed since.
use super::{CatalogueEntry, CatalogueFile};

const APACHE: &str = "Apache-2.0";
const MIT: &str = "MIT";
/// Licences of makers with conditions of their own.
const LLAMA: &str = "Llama";
const GEMMA: &str = "Gemma";

const fn file(quantisation: &'static str, source: &'static str, bytes: u64) -> CatalogueFile {
    CatalogueFile { quantisation, source, bytes, is_about: false }
}

const fn q4(source: &'static str, bytes: u64) -> CatalogueFile {
    file("Q4_K_M", source, bytes)
}

const fn q8(source: &'static str, bytes: u64) -> CatalogueFile {
    file("Q8_0", source, bytes)
}

/// A model with the planner's built-in shape of the same name.
const fn dense(
    name: &'static str,
    family: &'static str,
    parameters: f32,
    licence: &'static str,
    context: u32,
    files: &'static [CatalogueFile],
) -> CatalogueEntry {
    CatalogueEntry { name, family, parameters, active: None, licence, context, shape: Some(name), files }
}

/// A mixture of experts.
const fn sparse(active: f32, entry: CatalogueEntry) -> CatalogueEntry {
    CatalogueEntry { active: Some(active), ..entry }
}

const fn shaped(shape: Option<&'static str>, entry: CatalogueEntry) -> CatalogueEntry {
    CatalogueEntry { shape, ..entry }
}

/// All models, by family and size.
pub const ENTRIES: &[CatalogueEntry] = &[
    dense(
        "qwen3.5-0.8b",
        "qwen35",
        0.75,
        APACHE,
        262_144,
        &[
            q4("hf:unsloth/Qwen3.5-0.8B-GGUF:Qwen3.5-0.8B-Q4_K_M.gguf", 532_517_120),
            q8("hf:unsloth/Qwen3.5-0.8B-GGUF:Qwen3.5-0.8B-Q8_0.gguf", 811_843_840),
        ],
    ),
    dense(
        "qwen3.5-2b",
        "qwen35",
        1.9,
        APACHE,
        262_144,
        &[
            q4("hf:unsloth/Qwen3.5-2B-GGUF:Qwen3.5-2B-Q4_K_M.gguf", 1_280_835_840),
            q8("hf:unsloth/Qwen3.5-2B-GGUF:Qwen3.5-2B-Q8_0.gguf", 2_012_012_800),
        ],
    ),
    dense(
        "qwen3.5-4b",
        "qwen35",
        4.2,
        APACHE,
        262_144,
        &[
            q4("hf:unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q4_K_M.gguf", 2_740_937_888),
            q8("hf:unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q8_0.gguf", 4_482_403_488),
        ],
    ),
    dense(
        "qwen3.5-9b",
        "qwen35",
        9.0,
        APACHE,
        262_144,
        &[
            q4("hf:unsloth/Qwen3.5-9B-GGUF:Qwen3.5-9B-Q4_K_M.gguf", 5_680_522_464),
            q8("hf:unsloth/Qwen3.5-9B-GGUF:Qwen3.5-9B-Q8_0.gguf", 9_527_502_048),
        ],
    ),
    dense(
        "qwen3.5-27b",
        "qwen35",
        26.9,
        APACHE,
        262_144,
        &[
            q4("hf:unsloth/Qwen3.5-27B-GGUF:Qwen3.5-27B-Q4_K_M.gguf", 16_740_812_704),
            q8("hf:unsloth/Qwen3.5-27B-GGUF:Qwen3.5-27B-Q8_0.gguf", 28_595_763_104),
        ],
    ),
    sparse(
        3.0,
        dense(
            "qwen3.5-35b-a3b",
            "qwen35moe",
            34.7,
            APACHE,
            262_144,
            &[
                q4("hf:unsloth/Qwen3.5-35B-A3B-GGUF:Qwen3.5-35B-A3B-Q4_K_M.gguf", 22_016_023_168),
                q8("hf:unsloth/Qwen3.5-35B-A3B-GGUF:Qwen3.5-35B-A3B-Q8_0.gguf", 36_903_139_968),
            ],
        ),
    ),
    sparse(
        3.0,
        shaped(
            Some("qwen3.5-35b-a3b"),
            dense(
                "qwen3.6-35b-a3b",
                "qwen35moe",
                34.7,
                APACHE,
                262_144,
                &[file("UD-Q4_K_M", "hf:unsloth/Qwen3.6-35B-A3B-GGUF:Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", 22_134_528_992)],
            ),
        ),
    ),
    dense(
        "qwen3-0.6b",
        "qwen3",
        0.6,
        APACHE,
        40_960,
        &[q8("hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", 639_446_688)],
    ),
    dense(
        "qwen3-1.7b",
        "qwen3",
        1.7,
        APACHE,
        40_960,
        &[q8("hf:Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf", 1_834_426_016)],
    ),
    dense("qwen3-4b", "qwen3", 4.0, APACHE, 40_960, &[q4("hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf", 2_497_280_256)]),
    dense("qwen3-8b", "qwen3", 8.2, APACHE, 40_960, &[q4("hf:Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf", 5_027_783_488)]),
    dense(
        "qwen3-14b",
        "qwen3",
        14.8,
        APACHE,
        40_960,
        &[q4("hf:Qwen/Qwen3-14B-GGUF:Qwen3-14B-Q4_K_M.gguf", 9_001_752_960)],
    ),
    sparse(
        3.3,
        dense(
            "qwen3-30b-a3b",
            "qwen3moe",
            30.5,
            APACHE,
            40_960,
            &[q4("hf:Qwen/Qwen3-30B-A3B-GGUF:Qwen3-30B-A3B-Q4_K_M.gguf", 18_556_685_824)],
        ),
    ),
    sparse(
        3.3,
        shaped(
            Some("qwen3-30b-a3b"),
            dense(
                "qwen3-coder-30b-a3b",
                "qwen3moe",
                30.5,
                APACHE,
                262_144,
                &[q4(
                    "hf:unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
                    18_556_689_568,
                )],
            ),
        ),
    ),
    dense(
        "llama-3.2-1b",
        "llama",
        1.24,
        LLAMA,
        131_072,
        &[
            q4("hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf", 807_694_464),
            q8("hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q8_0.gguf", 1_321_083_008),
        ],
    ),
    dense(
        "llama-3.2-3b",
        "llama",
        3.2,
        LLAMA,
        131_072,
        &[
            q4("hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q4_K_M.gguf", 2_019_377_696),
            q8("hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q8_0.gguf", 3_421_899_296),
        ],
    ),
    dense(
        "llama-3.1-8b",
        "llama",
        8.0,
        LLAMA,
        131_072,
        &[
            q4("hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4_920_739_232),
            q8("hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", 8_540_775_840),
        ],
    ),
    dense(
        "llama-3.3-70b",
        "llama",
        70.6,
        LLAMA,
        131_072,
        &[q4("hf:bartowski/Llama-3.3-70B-Instruct-GGUF:Llama-3.3-70B-Instruct-Q4_K_M.gguf", 42_520_398_816)],
    ),
    sparse(
        3.6,
        dense(
            "gpt-oss-20b",
            "gpt-oss",
            20.9,
            APACHE,
            131_072,
            &[file("MXFP4", "hf:ggml-org/gpt-oss-20b-GGUF:gpt-oss-20b-MXFP4.gguf", 12_109_566_624)],
        ),
    ),
    dense(
        "gemma-4-e2b",
        "gemma4",
        5.1,
        APACHE,
        131_072,
        &[q4("hf:unsloth/gemma-4-E2B-it-GGUF:gemma-4-E2B-it-Q4_K_M.gguf", 3_106_735_776)],
    ),
    dense(
        "gemma-4-e4b",
        "gemma4",
        8.0,
        APACHE,
        131_072,
        &[
            q4("hf:unsloth/gemma-4-E4B-it-GGUF:gemma-4-E4B-it-Q4_K_M.gguf", 4_977_169_568),
            q8("hf:unsloth/gemma-4-E4B-it-GGUF:gemma-4-E4B-it-Q8_0.gguf", 8_192_951_456),
        ],
    ),
    dense(
        "gemma-4-12b",
        "gemma4",
        11.8,
        APACHE,
        131_072,
        &[q4("hf:unsloth/gemma-4-12b-it-GGUF:gemma-4-12b-it-Q4_K_M.gguf", 7_121_861_440)],
    ),
    sparse(
        3.8,
        dense(
            "gemma-4-26b-a4b",
            "gemma4",
            25.2,
            APACHE,
            262_144,
            &[CatalogueFile {
                quantisation: "UD-Q4_K_M",
                source: "hf:unsloth/gemma-4-26B-A4B-it-GGUF:gemma-4-26B-A4B-it-UD-Q4_K_M.gguf",
                bytes: 17_000_000_000,
                is_about: true,
            }],
        ),
    ),
    dense(
        "gemma-3-1b",
        "gemma3",
        1.0,
        GEMMA,
        32_768,
        &[q4("hf:bartowski/google_gemma-3-1b-it-GGUF:google_gemma-3-1b-it-Q4_K_M.gguf", 806_058_496)],
    ),
    dense(
        "gemma-3-4b",
        "gemma3",
        3.9,
        GEMMA,
        131_072,
        &[q4("hf:bartowski/google_gemma-3-4b-it-GGUF:google_gemma-3-4b-it-Q4_K_M.gguf", 2_489_758_112)],
    ),
    dense(
        "gemma-3-12b",
        "gemma3",
        11.8,
        GEMMA,
        131_072,
        &[q4("hf:bartowski/google_gemma-3-12b-it-GGUF:google_gemma-3-12b-it-Q4_K_M.gguf", 7_300_575_264)],
    ),
    dense(
        "phi-4-mini",
        "phi3",
        3.8,
        MIT,
        131_072,
        &[q4(
            "hf:bartowski/microsoft_Phi-4-mini-instruct-GGUF:microsoft_Phi-4-mini-instruct-Q4_K_M.gguf",
            2_491_874_688,
        )],
    ),
    dense("phi-4", "phi3", 14.7, MIT, 16_384, &[q4("hf:bartowski/phi-4-GGUF:phi-4-Q4_K_M.gguf", 9_053_114_816)]),
    dense(
        "ministral-3-3b",
        "mistral3",
        3.4,
        APACHE,
        262_144,
        &[q4("hf:mistralai/Ministral-3-3B-Instruct-2512-GGUF:Ministral-3-3B-Instruct-2512-Q4_K_M.gguf", 2_147_023_008)],
    ),
    dense(
        "ministral-3-8b",
        "mistral3",
        8.5,
        APACHE,
        262_144,
        &[q4("hf:mistralai/Ministral-3-8B-Instruct-2512-GGUF:Ministral-3-8B-Instruct-2512-Q4_K_M.gguf", 5_198_911_904)],
    ),
    dense(
        "ministral-3-14b",
        "mistral3",
        13.5,
        APACHE,
        262_144,
        &[q4(
            "hf:mistralai/Ministral-3-14B-Instruct-2512-GGUF:Ministral-3-14B-Instruct-2512-Q4_K_M.gguf",
            8_239_593_024,
        )],
    ),
    dense(
        "mistral-7b",
        "llama",
        7.2,
        APACHE,
        32_768,
        &[q4("hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Mistral-7B-Instruct-v0.3-Q4_K_M.gguf", 4_372_812_000)],
    ),
    dense(
        "granite-4.0-micro",
        "granite",
        3.4,
        APACHE,
        131_072,
        &[q4("hf:ibm-granite/granite-4.0-micro-GGUF:granite-4.0-micro-Q4_K_M.gguf", 2_099_502_528)],
    ),
    sparse(
        1.0,
        dense(
            "granite-4.0-h-tiny",
            "granitehybrid",
            6.9,
            APACHE,
            131_072,
            &[q4("hf:ibm-granite/granite-4.0-h-tiny-GGUF:granite-4.0-h-tiny-Q4_K_M.gguf", 4_230_976_352)],
        ),
    ),
    dense(
        "lfm2-1.2b",
        "lfm2",
        1.2,
        "LFM 1.0",
        128_000,
        &[q4("hf:LiquidAI/LFM2-1.2B-GGUF:LFM2-1.2B-Q4_K_M.gguf", 730_893_248)],
    ),
    sparse(
        1.5,
        shaped(
            None,
            dense(
                "lfm2-8b-a1b",
                "lfm2moe",
                8.3,
                "LFM 1.0",
                128_000,
                &[q4("hf:LiquidAI/LFM2-8B-A1B-GGUF:LFM2-8B-A1B-Q4_K_M.gguf", 5_044_779_712)],
            ),
        ),
    ),
    dense(
        "smollm3-3b",
        "smollm3",
        3.1,
        APACHE,
        65_536,
        &[q4("hf:ggml-org/SmolLM3-3B-GGUF:SmolLM3-Q4_K_M.gguf", 1_915_305_312)],
    ),
    sparse(
        3.0,
        dense(
            "glm-4.7-flash",
            "deepseek2",
            29.9,
            MIT,
            202_752,
            &[q4("hf:unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-Q4_K_M.gguf", 18_312_339_776)],
        ),
    ),
    sparse(
        3.6,
        dense(
            "nemotron-3-nano-30b-a3b",
            "nemotron_h_moe",
            31.6,
            "NVIDIA Open",
            262_144,
            &[q4(
                "hf:bartowski/nvidia_Nemotron-3-Nano-30B-A3B-GGUF:nvidia_Nemotron-3-Nano-30B-A3B-Q4_K_M.gguf",
                24_655_899_872,
            )],
        ),
    ),
    dense(
        "tinyllama-1.1b",
        "llama",
        1.1,
        APACHE,
        2048,
        &[q4("hf:TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf", 668_788_096)],
    ),
];
