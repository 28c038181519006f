import * as core from 'echarts/core';
import { BarChart, LineChart, ScatterChart, CustomChart } from 'echarts/charts';
import {
  GridComponent, TooltipComponent, LegendComponent, TitleComponent, MarkLineComponent,
} from 'echarts/components';
import { LabelLayout } from 'echarts/features';
import { SVGRenderer } from 'echarts/renderers';
core.use([
  BarChart, LineChart, ScatterChart, CustomChart,
  GridComponent, TooltipComponent, LegendComponent, TitleComponent, MarkLineComponent,
  LabelLayout, SVGRenderer,
]);
export const init = core.init, version = core.version, setPlatformAPI = core.setPlatformAPI;
