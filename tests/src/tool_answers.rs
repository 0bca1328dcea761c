//! Answers of models that call a tool, in every chat format.
use common::chat::{Thinking, ToolFormat};

/// An answer that calls `weather` with `{"city": "Oslo"}`.
#[derive(Clone, Copy, Debug)]
pub struct ToolAnswer {
    /// Its format.
    pub format: ToolFormat,
    /// Where it thinks.
    pub thinking: Thinking,
    /// Its text, with the marks that are control tokens.
    pub text: &'static str,
}

const fn answer(format: ToolFormat, thinking: Thinking, text: &'static str) -> ToolAnswer {
    ToolAnswer { format, thinking, text }
}

/// An answer in each format.
pub const TOOL_ANSWERS: [ToolAnswer; 12] = [
    answer(ToolFormat::Llama3, Thinking::None, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}"),
    answer(
        ToolFormat::Hermes,
        Thinking::Marked,
        "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
    ),
    answer(
        ToolFormat::Xml,
        Thinking::Open,
        "Hm.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
    ),
    answer(
        ToolFormat::Keyed,
        Thinking::Marked,
        "<think>Hm.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
    ),
    answer(
        ToolFormat::Lfm2,
        Thinking::Marked,
        "<think>Hm.</think><|tool_call_start|>[weather(city=\"Oslo\")]<|tool_call_end|>",
    ),
    answer(
        ToolFormat::Olmo,
        Thinking::Marked,
        "<think>Hm.</think><function_calls>\nweather(city='Oslo')\n</function_calls>",
    ),
    answer(
        ToolFormat::Gemma,
        Thinking::Marked,
        "<|channel>thought\nHm.<channel|><|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
    ),
    answer(
        ToolFormat::Harmony,
        Thinking::Marked,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather \
         <|constrain|>json<|message|>{\"city\": \"Oslo\"}",
    ),
    answer(ToolFormat::Mistral, Thinking::Marked, "[THINK]Hm.[/THINK][TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}"),
    answer(
        ToolFormat::Listed,
        Thinking::Marked,
        "<think>Hm.</think><|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]<|/tool_call|>",
    ),
    answer(
        ToolFormat::Capitals,
        Thinking::Marked,
        "<think>Hm.</think><TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</TOOLCALL>",
    ),
    answer(
        ToolFormat::DeepSeek,
        Thinking::Open,
        "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>\
         <｜tool▁calls▁end｜>",
    ),
];
