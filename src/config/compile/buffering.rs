//! `buffers`, and what is buffered at a location.

use std::path::Path;
use std::sync::Arc;

use super::Compiler;
use super::sites::SettingLevels;
use crate::config::decode::{Spanned, Text};
use crate::config::model::{self, Size};
use crate::config::plan::{BufferBounds, Buffering, RequestBuffering, ResponseBuffering};

impl Compiler<'_> {
    /// `buffers`, but for its path.
    pub(super) fn buffer_bounds(&mut self) -> BufferBounds {
        let default = BufferBounds::default();
        let Some(given) = self.config.buffers.value() else {
            return default;
        };
        let memory = given.memory.get();
        if let Some(memory) = memory.filter(|memory| memory.value.0 < LEAST_MEMORY) {
            self.complain_with(
                memory.span,
                "too little memory to buffer anything",
                "the least is 1m; `proxy_buffering: off` and `proxy_request_buffering: off` buffer nothing",
            );
        }
        BufferBounds {
            memory: memory.map_or(default.memory, |memory| memory.value.0),
            disk: given.disk.value().map_or(default.disk, |disk| disk.0),
        }
    }

    /// What is buffered where `levels` hold.
    pub(super) fn buffering(&mut self, levels: SettingLevels<'_>) -> Buffering {
        Buffering {
            request: self.request_buffering(levels),
            response: self.response_buffering(levels),
        }
    }

    /// `proxy_request_buffering` and what belongs to it; `None` for off.
    fn request_buffering(&mut self, levels: SettingLevels<'_>) -> Option<RequestBuffering> {
        let memory = self.size_up_to_1g(levels.find(|s| &s.buffering.client_body_buffer_size));
        let path = match levels.find(|s| &s.buffering.client_body_temp_path) {
            Some(given) => self.directory(given),
            None => self.buffers_path(),
        };
        let on = levels.find(|s| &s.buffering.proxy_request_buffering);
        on.is_none_or(|on| on.value.0).then(|| RequestBuffering {
            memory: memory.unwrap_or(BODY_BUFFER),
            path,
        })
    }

    /// `proxy_buffering` and what belongs to it.
    fn response_buffering(&mut self, levels: SettingLevels<'_>) -> ResponseBuffering {
        let on = levels.find(|s| &s.buffering.proxy_buffering);
        let memory = levels.find(|s| &s.buffering.proxy_buffers);
        let disk = levels.find(|s| &s.buffering.proxy_max_temp_file_size);
        ResponseBuffering {
            on: on.is_none_or(|on| on.value.0),
            memory: memory.map_or(BUFFERS, |given| self.buffers_size(given)),
            disk: disk.map_or(MAX_TEMP_FILE, |given| given.value.0),
            path: self.buffers_path(),
        }
    }

    /// Number and size multiplied.
    fn buffers_size(&mut self, given: &Spanned<model::Buffers>) -> usize {
        let bytes = given.value.number.saturating_mul(given.value.size);
        if bytes == 0 || bytes > MOST_MEMORY {
            let sentence = "buffers of nothing, or of more than 1g";
            self.complain_with(given.span, sentence, "the default is `8 4k`");
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn size_up_to_1g(&mut self, given: Option<&Spanned<Size>>) -> Option<usize> {
        let given = given?;
        if given.value.0 > MOST_MEMORY {
            let sentence = "more than 1g of memory for each request";
            self.complain_with(given.span, sentence, "what is longer is kept in a file");
        }
        usize::try_from(given.value.0).ok()
    }

    /// `path` of `buffers`.
    fn buffers_path(&mut self) -> Arc<Path> {
        let buffers = self.config.buffers.value();
        match buffers.and_then(|buffers| buffers.path.get()) {
            Some(given) => self.directory(given),
            None => Arc::from(Path::new(DEFAULT_PATH)),
        }
    }

    /// A directory for temporary files, to be looked at later.
    fn directory(&mut self, given: &Spanned<Text>) -> Arc<Path> {
        if let Some(known) = self.temp_paths.iter().find(|it| it.span == given.span) {
            return Arc::from(&*known.path);
        }
        let directory = self.file(given);
        let path = Arc::from(&*directory.path);
        self.temp_paths.push(directory);
        path
    }
}

/// Where temporary files are that nobody has named a place for: on a disk, where `/tmp` is often memory.
const DEFAULT_PATH: &str = "/var/tmp";

/// nginx's default of `client_body_buffer_size`.
const BODY_BUFFER: usize = 16 << 10;

/// nginx's default of `proxy_buffers`, multiplied.
const BUFFERS: usize = 8 * 4096;

/// nginx's default of `proxy_max_temp_file_size`.
const MAX_TEMP_FILE: u64 = 1 << 30;

/// Less is used up by a handful of slow clients.
const LEAST_MEMORY: u64 = 1 << 20;

/// Of one request.
const MOST_MEMORY: u64 = 1 << 30;
