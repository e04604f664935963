//! Applications that others wrote, behind weir as it is configured by default.

mod apache;
mod logs;
mod pages;
mod rclone;
mod tornado;
