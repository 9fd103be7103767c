// A block with registers and a memory port: it copies lines of 32 bytes, as NVDLA's BDMA does with one operation.
// Registers have the byte addresses of NVDLA (nv_full), so traces of the toolkit drive it.
`timescale 1ns / 1ps

module copier (
    input             clk,
    input             rst_n,
    // configuration space bus (CSB); addresses count words of 32 bits
    input             csb2nvdla_valid,
    output            csb2nvdla_ready,
    input      [15:0] csb2nvdla_addr,
    input      [31:0] csb2nvdla_wdat,
    input             csb2nvdla_write,
    input             csb2nvdla_nposted,
    output reg        nvdla2csb_valid,
    output reg [31:0] nvdla2csb_data,
    output reg        nvdla2csb_wr_complete,
    output            dla_intr,
    // memory port: bursts of four words of 64 bits
    output reg        nvdla_core2dbb_ar_arvalid,
    input             nvdla_core2dbb_ar_arready,
    output      [7:0] nvdla_core2dbb_ar_arid,
    output      [3:0] nvdla_core2dbb_ar_arlen,
    output reg [31:0] nvdla_core2dbb_ar_araddr,
    input             nvdla_core2dbb_r_rvalid,
    output            nvdla_core2dbb_r_rready,
    input       [7:0] nvdla_core2dbb_r_rid,
    input             nvdla_core2dbb_r_rlast,
    input      [63:0] nvdla_core2dbb_r_rdata,
    output reg        nvdla_core2dbb_aw_awvalid,
    input             nvdla_core2dbb_aw_awready,
    output      [7:0] nvdla_core2dbb_aw_awid,
    output      [3:0] nvdla_core2dbb_aw_awlen,
    output reg [31:0] nvdla_core2dbb_aw_awaddr,
    output reg        nvdla_core2dbb_w_wvalid,
    input             nvdla_core2dbb_w_wready,
    output     [63:0] nvdla_core2dbb_w_wdata,
    output      [7:0] nvdla_core2dbb_w_wstrb,
    output            nvdla_core2dbb_w_wlast,
    input             nvdla_core2dbb_b_bvalid,
    output            nvdla_core2dbb_b_bready,
    input       [7:0] nvdla_core2dbb_b_bid
);
    localparam [15:0] INTR_MASK = 16'h0001, INTR_STATUS = 16'h0003, FLUSH_STATUS = 16'h1403;
    localparam [15:0] SRC = 16'h1000, DST = 16'h1002, LINE = 16'h1004, LAUNCH = 16'h100d;
    localparam [2:0] IDLE = 0, ADDRESS = 1, READ = 2, WRITE = 3, RESPONSE = 4;

    reg  [2:0]  state;
    reg  [31:0] source, target, mask, status;
    reg  [12:0] line, done;
    reg  [1:0]  beat;
    reg  [63:0] words [0:3];

    assign csb2nvdla_ready = 1'b1;
    assign dla_intr = |(status & ~mask);
    assign nvdla_core2dbb_ar_arid = 8'd0;
    assign nvdla_core2dbb_ar_arlen = 4'd3;
    assign nvdla_core2dbb_aw_awid = 8'd0;
    assign nvdla_core2dbb_aw_awlen = 4'd3;
    assign nvdla_core2dbb_r_rready = state == READ;
    assign nvdla_core2dbb_b_bready = state == RESPONSE;
    assign nvdla_core2dbb_w_wdata = words[beat];
    assign nvdla_core2dbb_w_wstrb = 8'hff;
    assign nvdla_core2dbb_w_wlast = beat == 2'd3;

    wire access = csb2nvdla_valid && csb2nvdla_ready;
    wire write = access && csb2nvdla_write;

    always @(posedge clk) begin
        nvdla2csb_valid <= access && !csb2nvdla_write;
        nvdla2csb_wr_complete <= write && csb2nvdla_nposted;
        case (csb2nvdla_addr)
            INTR_STATUS: nvdla2csb_data <= status;
            FLUSH_STATUS: nvdla2csb_data <= 32'd1;
            SRC: nvdla2csb_data <= source;
            DST: nvdla2csb_data <= target;
            default: nvdla2csb_data <= 32'd0;
        endcase
        if (write) begin
            case (csb2nvdla_addr)
                INTR_MASK: mask <= csb2nvdla_wdat;
                INTR_STATUS: status <= status & ~csb2nvdla_wdat;
                SRC: source <= csb2nvdla_wdat;
                DST: target <= csb2nvdla_wdat;
                LINE: line <= csb2nvdla_wdat[12:0];
                default: ;
            endcase
        end
        case (state)
            IDLE: if (write && csb2nvdla_addr == LAUNCH && csb2nvdla_wdat[0]) begin
                done <= 13'd0;
                state <= ADDRESS;
                nvdla_core2dbb_ar_arvalid <= 1'b1;
                nvdla_core2dbb_ar_araddr <= source;
            end
            ADDRESS: if (nvdla_core2dbb_ar_arready) begin
                nvdla_core2dbb_ar_arvalid <= 1'b0;
                beat <= 2'd0;
                state <= READ;
            end
            READ: if (nvdla_core2dbb_r_rvalid) begin
                words[beat] <= nvdla_core2dbb_r_rdata;
                beat <= beat + 2'd1;
                if (nvdla_core2dbb_r_rlast) begin
                    state <= WRITE;
                    nvdla_core2dbb_aw_awvalid <= 1'b1;
                    nvdla_core2dbb_aw_awaddr <= target + {14'd0, done, 5'd0};
                    nvdla_core2dbb_w_wvalid <= 1'b1;
                    beat <= 2'd0;
                end
            end
            WRITE: begin
                if (nvdla_core2dbb_aw_awready) nvdla_core2dbb_aw_awvalid <= 1'b0;
                if (nvdla_core2dbb_w_wvalid && nvdla_core2dbb_w_wready) begin
                    beat <= beat + 2'd1;
                    if (beat == 2'd3) nvdla_core2dbb_w_wvalid <= 1'b0;
                end
                if (!nvdla_core2dbb_aw_awvalid && !nvdla_core2dbb_w_wvalid) state <= RESPONSE;
            end
            RESPONSE: if (nvdla_core2dbb_b_bvalid) begin
                done <= done + 13'd1;
                if (done == line) begin
                    state <= IDLE;
                    status <= status | 32'h40;  // BDMA_DONE of group 0
                end else begin
                    state <= ADDRESS;
                    nvdla_core2dbb_ar_arvalid <= 1'b1;
                    nvdla_core2dbb_ar_araddr <= source + {14'd0, done + 13'd1, 5'd0};
                end
            end
            default: state <= IDLE;
        endcase
        if (!rst_n) begin
            state <= IDLE;
            status <= 32'd0;
            mask <= 32'd0;
            line <= 13'd0;
            nvdla_core2dbb_ar_arvalid <= 1'b0;
            nvdla_core2dbb_aw_awvalid <= 1'b0;
            nvdla_core2dbb_w_wvalid <= 1'b0;
        end
    end
endmodule
