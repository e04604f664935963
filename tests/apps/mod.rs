//! Real applications behind weir with its defaults.

mod apache;
mod logs;
mod pages;
mod rclone;
mod tornado;
