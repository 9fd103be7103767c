"""Descriptors of single operations for handmade networks."""

from __future__ import annotations

from support.handmade import INPUT, OUTPUT, cube


def bdma(count):
    def fill(op, surface):
        op.num_transfers = surface.num_transfers = count
        for number in range(count):
            transfer = surface.transfers[number]
            transfer.source_address, transfer.destination_address = INPUT, OUTPUT
            transfer.line_size = transfer.source_line = transfer.destination_line = 64
            transfer.line_repeat, transfer.surface_repeat = 2, 1
            transfer.source_surface = transfer.destination_surface = 128

    return fill


def convolution(op, surface):
    """1x1 convolution of 8 channels with 8 kernels; the output goes to SDP on the fly."""
    op.data_format, op.batch, op.data_bank, op.weight_bank = 36, 1, 1, 1
    op.entry_per_slice = op.fetch_grain = op.release = 1
    op.input_width_csc = op.input_height_csc = op.kernel_width_csc = op.kernel_height_csc = 1
    op.input_channel_csc = op.kernel_channel_csc = op.bytes_per_kernel = 8
    op.input_width_cmac = op.input_height_cmac = 1
    op.conv_stride_x = op.conv_stride_y = op.dilation_x = op.dilation_y = 1
    op.out_cvt.scale = 1
    cube(surface.src_data, INPUT)
    cube(surface.weight_data, 9, size=64)
    surface.weight_data.size = 64
    cube(surface.dst_data, -1, memory=2)
